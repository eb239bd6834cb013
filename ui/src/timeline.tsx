// The timeline of a pod: what its agent did, as bars.
import { usePoll } from "./watch";
import { Problem } from "./components";
import { duration, plain, short } from "./format";

interface Span {
  id: number;
  parent?: number;
  kind: string;
  name: string;
  target?: string;
  start: string;
  end?: string;
  cause?: string;
  error?: string;
}

interface Node extends Span {
  depth: number;
  from: number;
  to: number;
}

// nest orders spans as a tree: parents before children, siblings by start.
export function nest(spans: Span[], now: number): Node[] {
  const known = new Set(spans.map((s) => s.id));
  const children = new Map<number, Span[]>();
  for (const s of spans) {
    const parent = s.parent && known.has(s.parent) && s.parent !== s.id ? s.parent : 0;
    children.set(parent, [...(children.get(parent) ?? []), s]);
  }
  const out: Node[] = [];
  const placed = new Set<number>();
  const place = (parent: number, depth: number) => {
    const list = [...(children.get(parent) ?? [])].sort((a, b) => Date.parse(a.start) - Date.parse(b.start) || a.id - b.id);
    for (const s of list) {
      if (placed.has(s.id)) continue;
      placed.add(s.id);
      const from = Date.parse(s.start);
      out.push({ ...s, depth, from, to: Math.max(s.end ? Date.parse(s.end) : now, from) });
      place(s.id, depth + 1);
    }
  };
  place(0, 0);
  return out;
}

interface Period {
  from: number;
  to: number;
  spans: Node[];
}

// periods splits the spans at pauses that are longer than all activity before them. Each period has its own scale.
export function periods(tree: Node[]): Period[] {
  const out: Period[] = [];
  for (const s of tree) {
    const last = out[out.length - 1];
    if (!last || (s.depth === 0 && s.from - last.to >= Math.max(2000, last.to - last.from))) {
      out.push({ from: s.from, to: s.to, spans: [s] });
      continue;
    }
    last.spans.push(s);
    last.to = Math.max(last.to, s.to);
  }
  return out;
}

export function Timeline({ path, refresh }: { path: string; refresh: unknown }) {
  const { value, error } = usePoll(`${path}/timeline`, 10, refresh);
  if (!value) return error ? <Problem error={error} what="show the timeline" /> : <p class="note">Loading.</p>;
  const tree = nest(value.spans ?? [], Date.parse(value.now));
  if (tree.length === 0) return <p class="note">No actions recorded for this pod yet.</p>;
  const all = periods(tree);
  return (
    <div class="timeline">
      {value.dropped > 0 && <p class="note">{value.dropped} operations between the start and the newest ones are not kept.</p>}
      {all.map((p, i) => (
        <section key={p.spans[0]!.id}>
          <h3>{i === 0 ? "Start" : `${duration(p.from - all[i - 1]!.to)} later`}
            <span class="dim"> {new Date(p.from).toLocaleTimeString()}, {short(p.to - p.from)}</span></h3>
          <ol>{p.spans.map((s) => <Bar key={s.id} span={s} period={p} />)}</ol>
        </section>
      ))}
    </div>
  );
}

function Bar({ span, period }: { span: Node; period: Period }) {
  const whole = Math.max(period.to - period.from, 1);
  const left = (100 * (span.from - period.from)) / whole;
  const width = Math.max((100 * (span.to - span.from)) / whole, 0.4);
  const length = short(span.to - span.from) + (span.end ? "" : " so far");
  const why = [span.cause, span.error && `failed: ${span.error}`].filter(Boolean).join("; ");
  return (
    <li class={"span " + (span.error ? "failed" : span.end ? span.kind : "open")}>
      <span class="span-name" style={{ paddingLeft: `${span.depth}em` }}>{plain([span.name, span.target].filter(Boolean).join(" "))}</span>
      <span class="span-track" aria-hidden="true">
        <span class="span-bar" style={{ left: `${Math.min(left, 99.6)}%`, width: `${width}%` }} /></span>
      <span class="span-length">{length}</span>
      <span class="span-why">{plain(why)}</span>
    </li>
  );
}
