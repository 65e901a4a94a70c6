sums = A * (0 + grid);
others = A * (2 * 1b-24 + 1b-27 + 1b-23);
margin = (1b-10 + A * 1b-20 + sums) / 1;
left = margin - sums - others;
{ A in [62, 513802] /\ grid in [0, 1] -> left >= 0 }
left -> 1b-10 + A * 1b-20 - others;
