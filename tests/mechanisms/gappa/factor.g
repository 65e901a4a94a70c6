@d = float<ieee_64, ne>;
@s = float<ieee_32, ne>;
longest = d(tau * d(1 - margin));
length = d(nx * nr);
c = d(longest / length);
f = s(c);
exact = tau * (1 - margin) / (X * R);
{ tau in [1e-9, 1e6] /\ margin in [1b-10, 0.5] /\ c in [1b-100, 1]
  /\ X in [1e-30, 1e15] /\ R in [1e-30, 1e15]
  /\ nx in [1e-30, 1e15] /\ nr in [1e-30, 1e15] /\ X * R in [1b-100, 1b100]
  /\ nx -/ X in [-17b-24, 17b-24] /\ nr -/ R in [-17b-24, 17b-24]
  -> f -/ exact in [-36b-24, 36b-24] }
