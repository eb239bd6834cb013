// Text and numbers.

const suffixes: Record<string, number> = {
  n: 1e-9, u: 1e-6, m: 1e-3, "": 1, k: 1e3, M: 1e6, G: 1e9, T: 1e12, P: 1e15, E: 1e18,
  Ki: 2 ** 10, Mi: 2 ** 20, Gi: 2 ** 30, Ti: 2 ** 40, Pi: 2 ** 50, Ei: 2 ** 60,
};

// quantity parses a Kubernetes quantity such as 100m or 2Gi.
export function quantity(text: string | number | undefined): number {
  if (text === undefined) return 0;
  const m = /^([+-]?[0-9.]+(?:[eE][+-]?[0-9]+)?)([A-Za-z]*)$/.exec(String(text));
  return m ? Number(m[1]) * (suffixes[m[2] ?? ""] ?? 1) : 0;
}

export function cores(n: number): string {
  return n >= 10 ? n.toFixed(0) : n >= 0.995 ? n.toFixed(1) : `${Math.round(n * 1000)}m`;
}

export function bytes(n: number): string {
  for (const unit of ["Ti", "Gi", "Mi", "Ki"]) {
    const size = suffixes[unit]!;
    if (n >= size) return `${n / size >= 10 ? Math.round(n / size) : (n / size).toFixed(1)}${unit}`;
  }
  return String(Math.round(n));
}

// duration formats milliseconds as kubectl does: 90s, 5m30s, 3h, 2d.
export function duration(ms: number): string {
  const s = Math.max(Math.round(ms / 1000), 0);
  if (s < 120) return `${s}s`;
  const m = Math.floor(s / 60);
  if (m < 10) return s % 60 ? `${m}m${s % 60}s` : `${m}m`;
  if (m < 180) return `${m}m`;
  const h = Math.floor(m / 60);
  if (h < 8) return m % 60 ? `${h}h${m % 60}m` : `${h}h`;
  if (h < 48) return `${h}h`;
  return `${Math.floor(h / 24)}d`;
}

export function short(ms: number): string {
  return ms < 1 ? "<1ms" : ms < 1000 ? `${Math.round(ms)}ms` : ms < 10_000 ? `${(ms / 1000).toFixed(2)}s` : duration(ms);
}

export function age(time: string | undefined, now = Date.now()): string {
  return time ? duration(now - Date.parse(time)) : "";
}

// count formats a number of things: 1 pod, 2 pods.
export function count(n: number, thing: string): string {
  return `${n} ${thing}${n === 1 ? "" : "s"}`;
}

export function clock(time: string): string {
  return new Date(time).toLocaleString();
}

// compareTimes compares times of RFC 3339 with nanoseconds, in any zone and with any number of digits.
export function compareTimes(a: string, b: string): number {
  const parse = (time: string) => {
    const m = /^(.*:\d\d)\.(\d+)(Z|[+-]\d\d:\d\d)$/.exec(time);
    return { seconds: Date.parse(m ? m[1]! + m[3]! : time), fraction: (m?.[2] ?? "").padEnd(9, "0") };
  };
  const x = parse(a);
  const y = parse(b);
  return x.seconds - y.seconds || (x.fraction < y.fraction ? -1 : x.fraction > y.fraction ? 1 : 0);
}

// plain removes escape sequences of terminals and other control characters.
export function plain(text: string): string {
  return text
    .replace(/\u001b(?:\[[0-?]*[ -/]*[@-~]|\][^\u0007\u001b]*(?:\u0007|\u001b\\)?|[@-Z\\-_])/g, "")
    .replace(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u202a-\u202e\u2066-\u2069]/g, "\u00b7");
}

function scalar(v: unknown, indent: string): string {
  if (typeof v !== "string") return String(v);
  if (v.includes("\n") && !/[^\n\t\u0020-\u007e\u00a0-\uffff]/.test(v) && !/^\s|\s\n|\n$\n/.test(v)) {
    const lines = v.replace(/\n$/, "").split("\n");
    return (v.endsWith("\n") ? "|" : "|-") + lines.map((l) => "\n" + (l && indent + l)).join("");
  }
  const safe = /^[A-Za-z/_](?:[A-Za-z0-9 ./_@+=-]|:(?=\S))*$/.test(v) && !/^(true|false|null|yes|no|on|off|y|n)$/i.test(v) && !/ $/.test(v);
  return safe ? v : JSON.stringify(v);
}

// yaml formats a JSON value.
export function yaml(v: unknown, indent = ""): string {
  if (Array.isArray(v)) {
    if (v.length === 0) return "[]";
    return v.map((e) => {
      const text = yaml(e, indent + "  ");
      return `${indent}- ${text.startsWith(indent + "  ") ? text.slice(indent.length + 2) : text}`;
    }).join("\n");
  }
  if (v !== null && typeof v === "object") {
    const entries = Object.entries(v).filter(([, e]) => e !== undefined);
    if (entries.length === 0) return "{}";
    return entries.map(([k, e]) => {
      const key = indent + scalar(k, "") + ":";
      const nested = e !== null && typeof e === "object" && Object.keys(e).length > 0;
      return nested ? `${key}\n${yaml(e, Array.isArray(e) ? indent : indent + "  ")}` : `${key} ${yaml(e, indent + "  ")}`;
    }).join("\n");
  }
  return scalar(v, indent);
}

export interface DiffLine {
  mark: " " | "+" | "-";
  text: string;
}

const maxComparisons = 4_000_000;

// diff compares two texts line by line. It returns undefined if they are too large.
export function diff(before: string, after: string): DiffLine[] | undefined {
  let a = before.split("\n");
  let b = after.split("\n");
  let start = 0;
  while (start < a.length && start < b.length && a[start] === b[start]) start++;
  let end = 0;
  while (end < a.length - start && end < b.length - start && a[a.length - 1 - end] === b[b.length - 1 - end]) end++;
  const same = (lines: string[]) => lines.map((text): DiffLine => ({ mark: " ", text }));
  const out = same(a.slice(0, start));
  const rest = same(a.slice(a.length - end));
  a = a.slice(start, a.length - end);
  b = b.slice(start, b.length - end);
  if (a.length * b.length > maxComparisons) return undefined;
  const common: number[][] = Array.from({ length: a.length + 1 }, () => new Array(b.length + 1).fill(0));
  for (let i = a.length - 1; i >= 0; i--) {
    for (let j = b.length - 1; j >= 0; j--) {
      common[i]![j] = a[i] === b[j] ? common[i + 1]![j + 1]! + 1 : Math.max(common[i + 1]![j]!, common[i]![j + 1]!);
    }
  }
  let i = 0;
  let j = 0;
  while (i < a.length || j < b.length) {
    if (i < a.length && j < b.length && a[i] === b[j]) {
      out.push({ mark: " ", text: a[i]! });
      i++, j++;
    } else if (j >= b.length || (i < a.length && common[i + 1]![j]! >= common[i]![j + 1]!)) {
      out.push({ mark: "-", text: a[i++]! });
    } else {
      out.push({ mark: "+", text: b[j++]! });
    }
  }
  return [...out, ...rest];
}
