@d = float<ieee_64, ne>;
@s = float<ieee_32, ne>;
v = s(w);
{ |w| in [0, 1b-125] -> v - w in [-1b-150, 1b-150] }
