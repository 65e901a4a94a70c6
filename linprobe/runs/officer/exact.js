/* Arithmetic that proves bounds: intervals of whole numbers.

   Exact(bits) computes with pairs [low, high] of BigInt, which stand for all numbers from low / 2^bits to
   high / 2^bits. Every operation rounds low down and high up, so a result holds the exact value. Only whole numbers are
   used: no bound depends on how a browser rounds. */

const floorDiv = (a, b) => (a >= 0n ? a / b : -((-a + b - 1n) / b)); // b > 0
const ceilDiv = (a, b) => -floorDiv(-a, b);
const floorShift = (a, n) => (n >= 0n ? a << n : a >> -n);
const ceilShift = (a, n) => -floorShift(-a, n);
const least = (...values) => values.reduce((a, b) => (b < a ? b : a));
const most = (...values) => values.reduce((a, b) => (b > a ? b : a));
const bitLength = (a) => (a < 0n ? -a : a).toString(16).length * 4; // at most 3 too many

/** A finite float64 as m 2^e, exactly. */
function parts(value) {
  const view = new DataView(new ArrayBuffer(8));
  view.setFloat64(0, value);
  const word = view.getBigUint64(0), exponent = Number((word >> 52n) & 0x7ffn);
  const fraction = (word & 0xfffffffffffffn) | (exponent ? 1n << 52n : 0n);
  return [word >> 63n ? -fraction : fraction, BigInt((exponent || 1) - 1075)];
}

/** The place of a float64 among those from 0 on, and the float64 at a place. */
function place(value) {
  const view = new DataView(new ArrayBuffer(8));
  view.setFloat64(0, value);
  return view.getBigUint64(0);
}
function atPlace(number) {
  const view = new DataView(new ArrayBuffer(8));
  view.setBigUint64(0, number);
  return view.getFloat64(0);
}
const above = (value) => atPlace(place(value) + 1n);

/** The least float64 that is at least whole / 2^bits, for whole >= 0. */
function floatAbove(whole, bits) {
  const drop = BigInt(Math.max(0, whole.toString(2).length - 53));
  return Number(ceilShift(whole, -drop)) * 2 ** Number(drop - bits);
}

class Exact {
  constructor(bits) {
    this.bits = BigInt(bits);
    this.one = 1n << this.bits;
  }

  of(value) {
    const [m, e] = parts(value);
    return [floorShift(m, e + this.bits), ceilShift(m, e + this.bits)];
  }
  add(a, b) { return [a[0] + b[0], a[1] + b[1]]; }
  subtract(a, b) { return [a[0] - b[1], a[1] - b[0]]; }
  multiply(a, b) {
    if (a[0] >= 0n && b[0] >= 0n) return [(a[0] * b[0]) >> this.bits, -((-a[1] * b[1]) >> this.bits)];
    const ends = [a[0] * b[0], a[0] * b[1], a[1] * b[0], a[1] * b[1]];
    return [least(...ends) >> this.bits, -(-most(...ends) >> this.bits)];
  }
  /** a times the whole number n, over the whole number d; n >= 0 and d > 0. */
  scale(a, n, d = 1n) { return [floorDiv(a[0] * n, d), ceilDiv(a[1] * n, d)]; }
  /** a / b for b > 0. */
  divide(a, b) {
    const low = floorDiv(a[0] << this.bits, a[0] >= 0n ? b[1] : b[0]);
    return [low, ceilDiv(a[1] << this.bits, a[1] >= 0n ? b[0] : b[1])];
  }
  sqrt(a) { return [root(a[0] << this.bits), root(a[1] << this.bits) + 1n]; }

  /** e^a: a = k log 2 + r, and the series of e^(r / 2^8), squared eight times. */
  exp(a) {
    const k = floorDiv(a[0], this.log2()[1]);
    const twos = k >= 0n ? this.scale(this.log2(), k) : this.scale(this.log2(), -k).map((end) => -end).reverse();
    const r = this.subtract(a, twos).map((end, high) => (high ? -(-end >> 8n) : end >> 8n));
    if (r[1] > this.one) return [0n, this.exp([a[1], a[1]])[1]]; // a is too wide to matter
    let term = [this.one, this.one], sum = term;
    for (let n = 1n; term[1] > 1n || term[0] < -1n; n++) {
      term = this.scale(this.multiply(term, r), 1n, n);
      sum = this.add(sum, term);
    }
    sum = [sum[0] - 2n, sum[1] + 2n]; // the rest of the series is less than its last term
    for (let n = 0; n < 8; n++) sum = this.multiply(sum, sum);
    return [floorShift(sum[0], k), ceilShift(sum[1], k)];
  }

  /** e^(x^2) erfc(x) for x >= 0, at most 2^20.

      Below 4: e^(x^2) - 2 / sqrt(pi) sum_n 2^n x^(2n+1) / (2n+1)!!, all terms positive. From 4 on, Laplace's continued
      fraction 1 / (sqrt(pi) c_1) with c_k = x + (k/2) / c_(k+1), where c_N lies between x and x + N / (2x). */
  erfcx(x) {
    if (x[0] < 4n * this.one) {
      const square = this.multiply(x, x);
      let term = x, sum = x, n = 0n, small = false;
      while (!small) {
        n += 1n;
        term = this.scale(this.multiply(term, square), 2n, 2n * n + 1n);
        sum = this.add(sum, term);
        small = 4n * square[1] < (2n * n + 3n) * this.one && term[1] <= 2n; // the next terms halve, at least
      }
      sum = [sum[0], sum[1] + 4n];
      return this.subtract(this.exp(square), this.divide(this.scale(sum, 2n), this.sqrtPi()));
    }
    const about = Number(x[0] >> (this.bits - 20n)) / 2 ** 20;
    let n = BigInt(Math.ceil((Number(this.bits) * 0.7) ** 2 / (8 * about ** 2)) + 8);
    let c = [x[0], x[1] + ceilDiv((n * this.one * this.one) / 2n, x[0])];
    for (; n > 1n; n--) {
      const half = (n - 1n) * this.one * (this.one >> 1n);
      c = [x[0] + floorDiv(half, c[1]), x[1] + ceilDiv(half, c[0])];
    }
    return this.divide([this.one, this.one], this.multiply(this.sqrtPi(), c));
  }

  log2() { return this.constant("log2", () => this.scale(this.arc(3n, 1n), 2n)); }
  sqrtPi() {
    return this.constant("sqrtPi", () =>
      this.sqrt(this.subtract(this.scale(this.arc(5n, -1n), 16n), this.scale(this.arc(239n, -1n), 4n))));
  }
  /** sum_k sign^k / ((2k+1) d^(2k+1)): artanh(1/d) for sign 1, arctan(1/d) for sign -1. */
  arc(d, sign) {
    let power = this.one / d, low = 0n, terms = 0n;
    for (let k = 0n; power > 0n; k++, terms += 2n) {
      low += (k % 2n ? sign : 1n) * (power / (2n * k + 1n));
      power /= d * d;
    }
    return [low - terms - 2n, low + terms + 2n]; // each quotient is less than 1 too small, and so is its power
  }
  constant(name, make) {
    const key = `${name} ${this.bits}`;
    if (!Exact.constants.has(key)) Exact.constants.set(key, make());
    return Exact.constants.get(key);
  }
}
Exact.constants = new Map();

/** The whole part of the square root of a whole number, by Newton's method from above. */
function root(value) {
  if (value < 2n) return value < 0n ? 0n : value;
  let found = 1n << BigInt((bitLength(value) >> 1) + 1);
  for (;;) {
    const next = (found + value / found) >> 1n;
    if (next >= found) return found;
    found = next;
  }
}

/* Gaussian differential privacy (Dong, Roth, Su 2022; Balle, Wang 2018, Theorem 8). With a = (eps/mu - mu/2) / sqrt 2
   and b = (eps/mu + mu/2) / sqrt 2, so that b^2 - a^2 = eps:

     delta(eps) = (erfc(a) - e^eps erfc(b)) / 2 = e^(-a^2) (erfcx(a) - erfcx(b)) / 2                            */

const LARGEST_MU = 1000; // above, epsilon would be over 500,000, and counts as infinite
const MOST_BITS = 3072;

/** a and b at a precision, or null if a has no certain sign. */
function bounds(exact, epsilon, mu) {
  const [e, m, two] = [epsilon, mu, 2].map((value) => exact.of(value));
  const loss = exact.divide(e, m), half = exact.scale(m, 1n, 2n), sqrt2 = exact.sqrt(two);
  const a = exact.divide(exact.subtract(loss, half), sqrt2), b = exact.divide(exact.add(loss, half), sqrt2);
  return a[0] < 0n && a[1] > 0n ? null : [a, b];
}

/** Whether a mu-GDP mechanism is (epsilon, delta)-differentially private; false unless it is proven. */
function holds(epsilon, delta, mu) {
  if (mu * 0.4 <= delta) return true; // delta(eps) <= delta(0) <= mu / sqrt(2 pi)
  if (!(mu <= LARGEST_MU && delta > 0)) return false;
  if (epsilon / mu - mu / 2 > 40) return true; // delta(eps) <= e^(-40^2 / 2) < 2^-1100
  const tiny = 2 * Math.max(0, Math.ceil(-Math.log2(mu)));
  for (let bits = 96 + tiny; bits <= MOST_BITS + tiny; bits *= 2) {
    const exact = new Exact(bits), both = bounds(exact, epsilon, mu);
    if (both === null) continue;
    const [a, b] = both, [m, e] = parts(delta);
    let left, right; // the claim: right <= left
    if (a[0] >= 0n) {
      const scaled = exact.exp(exact.multiply(a, a));
      left = [floorShift(2n * m * scaled[0], e), ceilShift(2n * m * scaled[1], e)];
      right = exact.subtract(exact.erfcx(a), exact.erfcx(b));
    } else {
      const c = [-a[1], -a[0]], square = exact.multiply(c, c);
      const tails = exact.multiply(exact.exp([-square[1], -square[0]]), exact.add(exact.erfcx(c), exact.erfcx(b)));
      left = exact.scale(exact.of(delta), 2n);
      right = exact.subtract([2n * exact.one, 2n * exact.one], tails);
    }
    if (right[1] <= left[0]) return true;
    if (right[0] > left[1]) return false;
  }
  return false;
}

/** The least float64 epsilon for which `holds`: never below the exact epsilon. Infinite above LARGEST_MU. */
function gaussianEpsilon(mu, delta) {
  if (mu > LARGEST_MU) return Infinity;
  if (mu === 0 || holds(0, delta, mu)) return 0;
  let found = place(guess(mu, delta)), low = -1n, step = 1n; // the guess is a few places off, if delta is not tiny
  for (; !holds(atPlace(found), delta, mu); step *= 2n) {
    low = found;
    found = least(found + step, place(Infinity));
  }
  if (low < 0n) {
    for (low = most(found - 1n, 0n), step = 1n; holds(atPlace(low), delta, mu); step *= 2n) {
      found = low;
      low = most(low - step, 0n);
    }
  }
  while (found - low > 1n) {
    const middle = (found + low) >> 1n;
    if (holds(atPlace(middle), delta, mu)) found = middle; else low = middle;
  }
  return atPlace(found);
}

/** A float64 near epsilon, by Newton's method for the logarithm of delta(eps), which is concave. */
function guess(mu, delta) {
  const exact = new Exact(96 + 2 * Math.max(0, Math.ceil(-Math.log2(mu))));
  const number = (a) => Number(a[0] + a[1] >> 1n >> (exact.bits - 90n)) / 2 ** 90;
  let epsilon = mu * (mu / 2 + Math.sqrt(-2 * Math.log(delta)));
  for (let n = 0; n < 60; n++) {
    const both = bounds(exact, epsilon, mu);
    if (both === null) return epsilon;
    const [a, b] = both, left = number(a), inner = exact.erfcx(b);
    const scaled = left >= 0 ? exact.erfcx(a) : exact.subtract(
      exact.scale(exact.exp(exact.multiply(a, a)), 2n), exact.erfcx([-a[1], -a[0]]));
    const excess = number(exact.subtract(scaled, inner)), slope = number(inner); // both times 2 e^(a^2)
    const moved = epsilon + (excess * (Math.log(excess / 2 / delta) - left * left)) / slope;
    if (!(moved > 0)) return epsilon / 2;
    if (moved === Infinity) return epsilon; // delta is too small for a quotient in float64
    if (Math.abs(moved - epsilon) <= 2e-16 * epsilon) return moved;
    epsilon = moved;
  }
  return epsilon;
}

/** mu and rho of sums over all rows, rounded up: mu^2 = sum of count / sigma^2, rho = mu^2 / 2. */
function gaussianFigures(releases) {
  const wide = Math.max(0, ...releases.map((one) => Math.ceil(Math.log2(one.noise_multiplier))));
  const bits = 320n + 2n * BigInt(wide);
  let low = 0n, high = 0n;
  for (const one of releases) {
    const [m, e] = parts(one.noise_multiplier), scaled = floorShift(BigInt(one.count), bits - 2n * e);
    low += scaled / (m * m);
    high += ceilDiv(scaled, m * m);
  }
  return { mu: floatAbove(root(high << bits) + (high === low && root(high << bits) ** 2n === high << bits ? 0n : 1n), bits), rho: floatAbove(high, bits + 1n) };
}

/** Phi(mu / 2), the most right guesses that mu allows, rounded up. */
function rightGuesses(mu) {
  const exact = new Exact(192), x = exact.divide(exact.scale(exact.of(mu), 1n, 2n), exact.sqrt(exact.of(2)));
  if (x[1] > 30n * exact.one) return 1;
  const square = exact.multiply(x, x), tail = exact.multiply(exact.exp([-square[1], -square[0]]), exact.erfcx(x));
  return floatAbove(2n * exact.one - tail[0], exact.bits + 1n);
}

/* Poisson samples: a Renyi bound (Mironov, Talwar, Zhang 2019) for whole orders alpha,

     exp((alpha - 1) D) = sum_k C(alpha, k) q^k (1 - q)^(alpha - k) exp((k^2 - k) / (2 sigma^2)),

   and epsilon = D + log(1 - 1/alpha) - (log delta + log alpha) / (alpha - 1), the least over all orders (Canonne, Kamath,
   Steinke 2020, Proposition 12). The sum is an interval. Its logarithm and the rest are float64: ROUNDING is added, far
   more than the few units in the last place that any browser's log is off.

   At large epsilon, orders between 1 and 2 are the best. For u, v >= 0 and such alpha

     (u + v)^alpha <= u^alpha + alpha u^(alpha - 1) v + v^alpha,

   as both sides are equal at v = 0, and the derivatives by v, over alpha, are (u + v)^(alpha - 1) <= u^(alpha - 1) +
   v^(alpha - 1). With u = 1 - q, v = q times the likelihood ratio, whose mean is 1, this is

     exp((alpha - 1) D) <= (1 - q)^alpha + alpha (1 - q)^(alpha - 1) q + q^alpha exp((alpha^2 - alpha) / (2 sigma^2)). */

const LOW_ORDERS = [1.01, 1.02, 1.03, ...[...Array(38).keys()].map((n) => 1.04 + n / 40)];
const ORDERS = [...Array(63).keys()].map((n) => n + 2).concat([128, 256, 512, 1024]);
const ROUNDING = 1e-12, LARGEST_EXPONENT = 3000;
const LEAST_RATE = 2 ** -30; // smaller rates count as this one, which costs more

/** An upper bound on D(alpha) of one release. */
function divergence(sigma, rate, alpha) {
  const q = Math.max(rate, LEAST_RATE);
  if (q === 1) return (alpha / (2 * sigma * sigma)) * (1 + ROUNDING);
  if (alpha < 2) return lowDivergence(sigma, q, alpha);
  if ((alpha * alpha) / (2 * sigma * sigma) > LARGEST_EXPONENT) return Infinity; // a smaller order is enough
  const digits = Math.ceil(alpha * Math.max(-Math.log2(q), -Math.log2(1 - q), 0));
  const exact = new Exact(256 + digits), order = BigInt(alpha);
  const stays = [[exact.one, exact.one]], out = exact.subtract(stays[0], exact.of(q)), joins = exact.of(q);
  for (let k = 0; k < alpha; k++) stays.push(exact.multiply(stays[k], out));
  const square = exact.multiply(exact.of(sigma), exact.of(sigma));
  const grow = exact.exp(exact.divide([exact.one, exact.one], square)); // e^(1 / sigma^2)
  let choose = 1n, joined = [exact.one, exact.one], factor = joined, power = joined, sum = [0n, 0n];
  for (let k = 0n; k <= order; k++) {
    const weight = exact.multiply(exact.multiply(joined, stays[alpha - Number(k)]), power);
    sum = exact.add(sum, exact.scale(weight, choose));
    choose = (choose * (order - k)) / (k + 1n);
    joined = exact.multiply(joined, joins);
    power = exact.multiply(power, factor); // e^(k (k + 1) / (2 sigma^2))
    factor = exact.multiply(factor, grow);
  }
  return (logAbove(sum[1], exact) * (1 + ROUNDING)) / (alpha - 1);
}

/** `divergence` for 1 < alpha < 2. */
function lowDivergence(sigma, q, alpha) {
  const stay = Math.log1p(-q), rare = alpha * Math.log(q) + (alpha * (alpha - 1)) / (2 * sigma * sigma);
  const rest = Math.expm1(alpha * stay) + alpha * q * Math.exp((alpha - 1) * stay); // at most 1
  const log = rare > 500 ? rare + ROUNDING : Math.log1p(Math.exp(rare) + rest); // with rest / e^500 below the rounding
  return (log + ROUNDING * (1 + Math.abs(log) + Math.abs(rare))) / (alpha - 1);
}

/** log of whole / 2^bits, for a number of 1 or more: log(1 + x) of the excess x, in float64. */
function logAbove(whole, exact) {
  const twos = Math.max(0, bitLength(whole >> exact.bits) - 4);
  const scaled = ceilShift(whole, BigInt(-twos));
  return Math.log1p(floatAbove(scaled > exact.one ? scaled - exact.one : 0n, exact.bits)) + twos * Math.LN2;
}

/** What releases cost: holds(epsilon, delta) and epsilon(delta), upper bounds. `proven` if exact, for sums over all rows. */
function costOf(releases) {
  if (releases.every((one) => one.sampling_rate === 1)) {
    const { mu } = gaussianFigures(releases);
    return {
      proven: true, mu,
      epsilon: (delta) => gaussianEpsilon(mu, delta),
      holds: (epsilon, delta) => holds(epsilon, delta, mu),
    };
  }
  const known = new Map();
  const spent = (alpha) => {
    if (!known.has(alpha)) {
      known.set(alpha, releases.reduce((sum, one) =>
        sum + one.count * divergence(one.noise_multiplier, one.sampling_rate, alpha) * (1 + ROUNDING), 0));
    }
    return known.get(alpha);
  };
  const at = (alpha, delta) => {
    const rest = Math.log1p(-1 / alpha) - (Math.log(delta) + Math.log(alpha)) / (alpha - 1);
    return Math.max(0, spent(alpha) + rest) + ROUNDING * (1 + spent(alpha) + Math.abs(rest));
  };
  const epsilon = (delta) => {
    let found = Math.min(...LOW_ORDERS.map((alpha) => at(alpha, delta))), worse = 0;
    for (const alpha of ORDERS) {
      const one = at(alpha, delta);
      worse = one < found ? 0 : worse + 1;
      found = Math.min(found, one);
      if (worse === 4) break; // larger orders cost more
    }
    return found;
  };
  return { proven: false, mu: null, epsilon, holds: (one, delta) => epsilon(delta) <= one };
}

/** A lower bound on the epsilon of Poisson-sampled sums: what one test of membership, on the sum of all releases of a kind, proves.

   With the record the sum is the noise plus a Binomial(T, q) number of sensitivities. So for every threshold t,
   delta(eps) >= P(sum > t) - e^eps Q(sum > t), in float64 with a margin of SLACK. */
const SLACK = 2e-3, REACH = 9, MOST_STEPS = 1e7; // of more, logarithms of binomials lose digits
function leastEpsilon(releases, delta) {
  return Math.max(0, ...releases.map(({ noise_multiplier: sigma, sampling_rate: q, count }) => {
    if (count > MOST_STEPS) return 0;
    const spread = sigma * Math.sqrt(count), mean = q * count, around = Math.sqrt(mean * (1 - q)) + 1, masses = [];
    const first = Math.max(0, Math.floor(mean - REACH * around)), last = Math.min(count, Math.ceil(mean + REACH * around));
    const every = Math.max(1, Math.ceil((last - first) / 2000)); // numbers are rounded down to a multiple: a lower bound
    for (let k = first; k <= last; k++) {
      const place = Math.floor((k - first) / every), mass = Math.exp(logBinomial(count, k, q));
      masses[place] = (masses[place] ?? 0) + mass;
    }
    let best = 0;
    for (let n = -20; n <= 80; n++) {
      const t = mean + (n / 10) * spread;
      const seen = masses.reduce((sum, mass, place) => sum + mass * tail((t - first - place * every) / spread), 0);
      const gain = seen * (1 - SLACK) - delta;
      if (gain > 0) best = Math.max(best, Math.log(gain / tail(t / spread)) - SLACK);
    }
    return best;
  }));
}
const logBinomial = (n, k, q) => logGamma(n + 1) - logGamma(k + 1) - logGamma(n - k + 1) + k * Math.log(q) + (n === k ? 0 : (n - k) * Math.log1p(-q));
/** log Gamma(x) for x >= 1, by Stirling's series. */
function logGamma(x) {
  let shift = 0;
  for (; x < 20; x++) shift -= Math.log(x);
  return shift + (x - 0.5) * Math.log(x) - x + Math.log(2 * Math.PI) / 2 + 1 / (12 * x) - 1 / (360 * x ** 3);
}
/** The normal mass above x, with a relative error below 2e-7 (Chebyshev fit, Numerical Recipes, section 6.2). */
function tail(x) {
  const z = Math.abs(x) / Math.SQRT2, t = 1 / (1 + z / 2);
  const series = [-1.26551223, 1.00002368, 0.37409196, 0.09678418, -0.18628806, 0.27886807, -1.13520398, 1.48851587, -0.82215223, 0.17087277];
  const mass = (t * Math.exp(series.reduceRight((sum, one) => sum * t + one, 0) - z * z)) / 2;
  return x >= 0 ? mass : 1 - mass;
}

/** Epsilon of the best of a geometric number of runs with mean m (Koskela, Redberg, Wang 2024): eps_Q(delta / m) + 2 eps_1,
    for the least eps_1 with delta_Q(eps_1) <= (e^eps_1 - 1) / (m - 1). `runs`: the releases of one run, by budget. */
function selectionEpsilon(runs, mean, delta) {
  const costs = runs.map(costOf), proven = costs.every((cost) => cost.proven);
  const base = Math.max(...costs.map((cost) => cost.epsilon(delta / mean)));
  if (!Number.isFinite(base)) return { epsilon: Infinity, proven };
  const enough = (loss) => costs.every((cost) => cost.holds(loss, (Math.expm1(loss) / (mean - 1)) * (1 - 1e-9)));
  let low = 0, high = Math.max(base, 1e-12);
  while (!enough(high)) high *= 2;
  for (let n = 0; n < 60; n++) {
    const middle = (low + high) / 2;
    if (enough(middle)) high = middle; else low = middle;
  }
  return { epsilon: (base + 2 * high) * (1 + 1e-15), proven };
}
