sums = A * (16768 * 1b-24 + grid);
others = A * (37 * 1b-24 + 1b-27 + 1b-23);
margin = (1b-10 + A * 0 + sums) / 1;
left = margin - sums - others;
{ A in [1, 62] /\ grid in [0, 1] -> left >= 0 }
left -> 1b-10 + A * 0 - others;
