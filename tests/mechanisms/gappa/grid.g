@d = float<ieee_64, ne>;
@s = float<ieee_32, ne>;
shift = 3b51;
raised = d(t + shift);
g = d(raised - shift);
{ t in [-1b50, 1b50] -> g - t in [-0.5, 0.5] }
g - t -> (g - (raised - shift)) + (raised - (t + shift));
