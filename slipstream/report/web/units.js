// Numbers with units, as the terminal writes them.
const UNKNOWN = "–";

function scaled(value, units, digits = 3) {
  if (value === null || value === undefined || !Number.isFinite(value)) return UNKNOWN;
  if (value === 0) return `0 ${units[0][0]}`;
  const [unit, scale] = units.find(([, size]) => Math.abs(Number((value / size).toPrecision(digits))) >= 1) || units[units.length - 1];
  return `${plainDigits(value / scale, digits)} ${unit}`;
}

function plainDigits(value, digits = 3) {
  const whole = Math.abs(value) >= 1 ? Math.floor(Math.log10(Math.abs(value))) + 1 : 1;
  const rounded = Number(value.toPrecision(digits));
  return rounded.toLocaleString("en", {
    minimumFractionDigits: Math.max(0, digits - whole), maximumFractionDigits: Math.max(0, digits - whole) + (Math.abs(value) < 1 ? 3 : 0),
    useGrouping: true,
  });
}

const TIMES = [["s", 1], ["ms", 1e-3], ["µs", 1e-6], ["ns", 1e-9]];
const latency = (seconds) => scaled(seconds, TIMES);
const rate = (flops) => scaled(flops, [["TFLOP/s", 1e12], ["GFLOP/s", 1e9], ["MFLOP/s", 1e6], ["FLOP/s", 1]]);
const work = (flops) => scaled(flops, [["GFLOP", 1e9], ["MFLOP", 1e6], ["kFLOP", 1e3], ["FLOP", 1]]);
const size = (bytes) => scaled(bytes, [["GB", 1e9], ["MB", 1e6], ["kB", 1e3], ["B", 1]]);
const bandwidth = (bytes) => scaled(bytes, [["TB/s", 1e12], ["GB/s", 1e9], ["MB/s", 1e6], ["B/s", 1]]);
const count = (number) => Number(number).toLocaleString("en");
const some = (number, what) => `${count(number)} ${what}${number === 1 ? "" : "s"}`;
const percent = (share) => (Number.isFinite(share) ? `${(100 * share).toFixed(share < 0.0995 ? 1 : 0)} %` : UNKNOWN);

function span(seconds) {
  if (!Number.isFinite(seconds)) return UNKNOWN;
  if (seconds < 10) return `${plainDigits(Math.max(0, seconds), 2)} s`;
  if (seconds < 60) return `${Math.round(seconds)} s`;
  return `${clock(seconds)} ${seconds < 3600 ? "min" : "h"}`;
}

function clock(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  const [h, m, s] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60, whole % 60];
  const two = (n) => String(n).padStart(2, "0");
  return h ? `${h}:${two(m)}:${two(s)}` : `${m}:${two(s)}`;
}

function times(before, after) {
  return before > 0 && after > 0 ? `${(before / after).toFixed(before / after < 99.5 ? 2 : 0)}×` : UNKNOWN;
}

function date(seconds) {
  return new Date(seconds * 1000).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "short" });
}
