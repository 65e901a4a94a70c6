@d = float<ieee_64, ne>;
@s = float<ieee_32, ne>;
v = s(w);
{ |w| in [1b-125, 1b120] -> v -/ w in [-1b-24, 1b-24] }
