// Parts that several views use.
import type { ComponentChildren } from "preact";
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { allowed, type Access, type APIError, type KubeObject } from "./api";
import { age, clock, plain } from "./format";
import { owner, trouble } from "./model";
import type { Column, List, Row } from "./watch";

// link returns the address of a view. Its parts can contain any character.
export function link(...parts: string[]): string {
  return "#/" + parts.map(encodeURIComponent).join("/");
}

// useNow redraws a view regularly, so that ages are right.
export function useNow(seconds = 10): number {
  const [now, set] = useState(Date.now());
  useEffect(() => {
    const timer = setInterval(() => set(Date.now()), seconds * 1000);
    return () => clearInterval(timer);
  }, [seconds]);
  return now;
}

export function Since({ time, now }: { time?: string; now: number }) {
  return time ? <time dateTime={time} title={clock(time)}>{age(time, now)}</time> : null;
}

// chooseNamespace is the hint of lists of all namespaces.
export const chooseNamespace = " Choose a namespace.";

// Problem shows an error, and a hint if the user lacks a permission.
export function Problem({ error, what, hint }: { error?: APIError; what: string; hint?: string }) {
  if (!error) return null;
  const text = error.code === 403 ? `You have no permission to ${what}.${hint ?? ""}` : `Cannot ${what}: ${plain(error.message)}`;
  return <p class={error.code === 403 ? "note" : "error"} role="status">{text}</p>;
}

// Live says whether what is shown is up to date.
export function Live({ list }: { list: List }) {
  const text = list.live ? "live" : list.error ? "reconnecting" : list.loaded ? "connecting" : "loading";
  return <span class={"live " + text} role="status">{text}</span>;
}

export interface Use {
  label: string;
  capacity: number;
  requests: number;
  use?: number;
  format: (n: number) => string;
  count?: boolean; // of things that are not requested
}

// Bar draws requests and use of a resource against its capacity.
export function Bar({ label, capacity, requests, use, format, count }: Use) {
  const part = (n: number) => `${Math.min(capacity ? (100 * n) / capacity : 0, 100)}%`;
  const text = count ? `${format(requests)} of ${format(capacity)}` : `${format(requests)} requested${use === undefined ? "" : `, ${format(use)} used`} of ${format(capacity)}`;
  return (
    <div class="bar-row">
      <span class="bar-label">{label}</span>
      <div class="bar" role="img" aria-label={`${label}: ${text}`}>
        <div class="bar-requests" style={{ width: part(requests) }} />
        {use !== undefined && <div class="bar-use" style={{ width: part(use) }} />}
      </div>
      <span class="bar-text">{text}</span>
    </div>
  );
}

export function Labels({ of }: { of?: Record<string, string> }) {
  const entries = Object.entries(of ?? {});
  if (entries.length === 0) return <span class="dim">none</span>;
  return <ul class="chips">{entries.map(([k, v]) => <li key={k}>{plain(v ? `${k}=${v}` : k)}</li>)}</ul>;
}

export function Facts({ of }: { of: [string, ComponentChildren][] }) {
  return <dl class="facts">{of.map(([k, v]) => [<dt key={k}>{k}</dt>, <dd key={k + "v"}>{v || <span class="dim">none</span>}</dd>])}</dl>;
}

export function Conditions({ of, now }: { of?: any[]; now: number }) {
  if (!of?.length) return <p class="note">No conditions.</p>;
  return (
    <div class="scroll"><table>
      <thead><tr><th>Type</th><th>Status</th><th>Since</th><th>Reason</th><th>Message</th></tr></thead>
      <tbody>{of.map((c) => (
        <tr key={c.type}><td>{plain(c.type)}</td><td>{c.status}</td><td><Since time={c.lastTransitionTime} now={now} /></td>
          <td>{plain(c.reason ?? "")}</td><td class="wrap">{plain(c.message ?? "")}</td></tr>
      ))}</tbody>
    </table></div>
  );
}

export function Events({ of, now, withObject }: { of: KubeObject[]; now: number; withObject?: boolean }) {
  if (of.length === 0) return <p class="note">No events.</p>;
  const at = (e: any) => e.series?.lastObservedTime ?? e.lastTimestamp ?? e.eventTime ?? e.metadata.creationTimestamp;
  const sorted = [...of].sort((a, b) => Date.parse(at(b)) - Date.parse(at(a)));
  return (
    <div class="scroll"><table>
      <thead><tr><th>Last seen</th><th>Type</th><th>Reason</th>{withObject && <th>Object</th>}<th>Message</th></tr></thead>
      <tbody>{sorted.map((e) => (
        <tr key={e.metadata.uid} class={e.type === "Warning" ? "bad" : ""}>
          <td><Since time={at(e)} now={now} /></td><td>{plain(e.type ?? "")}</td><td>{plain(e.reason ?? "")}</td>
          {withObject && <td>{objectLink(e.involvedObject)}</td>}
          <td class="wrap">{plain(e.message ?? "")}{(e.series?.count ?? e.count ?? 1) > 1 &&
            <span class="dim"> ({e.series?.count ?? e.count} times)</span>}</td>
        </tr>
      ))}</tbody>
    </table></div>
  );
}

const views: Record<string, string> = {
  Pod: "pod", Deployment: "workload", StatefulSet: "workload", DaemonSet: "workload", Node: "node", Service: "service",
};

// objectLink links an object to its view, if it has one.
export function objectLink(ref: { kind: string; name: string; namespace?: string }) {
  const text = `${ref.kind}/${ref.name}`;
  switch (views[ref.kind]) {
    case "workload": return <a href={link("workload", ref.kind, ref.namespace ?? "", ref.name)}>{text}</a>;
    case "node": return <a href={link("node", ref.name)}>{text}</a>;
    case "pod": case "service": return <a href={link(views[ref.kind]!, ref.namespace ?? "", ref.name)}>{text}</a>;
    default: return plain(text);
  }
}

export function useAllowed(access: Access | undefined): boolean {
  const [may, set] = useState(false);
  useEffect(() => {
    set(false);
    let ended = false;
    if (access) void allowed(access).then((yes) => { if (!ended) set(yes); });
    return () => { ended = true; };
  }, [access && JSON.stringify(access)]);
  return may;
}

const rowHeight = 30;
const collator = new Intl.Collator(undefined, { numeric: true });

// Rows are replaced when their objects change, so what is derived from a row stays valid.
const sortKeys = new WeakMap<Row, string>();

function sortKey(row: Row): string {
  let key = sortKeys.get(row);
  if (key === undefined) {
    const m = row.object.metadata;
    sortKeys.set(row, key = `${m.namespace ?? ""}/${m.name}`);
  }
  return key;
}

function compareKeys(a: Row, b: Row): number {
  const x = sortKey(a);
  const y = sortKey(b);
  return x < y ? -1 : x > y ? 1 : 0;
}

const searchTexts = new WeakMap<Row, string>();

// searchText returns what a search matches: cells, labels, namespace and owners, in lower case.
export function searchText(row: Row): string {
  let text = searchTexts.get(row);
  if (text === undefined) {
    const m = row.object.metadata;
    const labels = Object.entries(m.labels ?? {}).map(([k, v]) => `${k}=${v}`);
    const owners = (m.ownerReferences ?? []).map((o) => `${o.kind}/${o.name}`);
    searchTexts.set(row, text = [m.namespace, ...row.cells, ...labels, ...owners].join(" ").toLowerCase());
  }
  return text;
}

// PodTable shows the columns of kubectl get -o wide. It draws only the rows that are visible.
export function PodTable({ list, rows, allNamespaces, label }:
  { list: List; rows: Row[]; allNamespaces: boolean; label: string }) {
  const box = useRef<HTMLDivElement>(null);
  const [view, setView] = useState({ top: 0, height: 600 });
  const [sort, setSort] = useState<{ column: number; down: boolean }>({ column: -1, down: false });
  useLayoutEffect(() => {
    const el = box.current!;
    const measure = () => setView({ top: el.scrollTop, height: el.clientHeight });
    measure();
    const observer = new ResizeObserver(measure);
    observer.observe(el);
    return () => observer.disconnect();
  }, []);
  const now = useNow();
  const hidden = new Set(["Nominated Node", "Readiness Gates"]);
  const shown = list.columns.map((c, i) => [c, i] as [Column, number]).filter(([c]) => !hidden.has(c.name));
  const sorted = useMemo(() => {
    const by = sort.column;
    const value = (r: Row) => {
      const c = list.columns[by]?.name;
      return c === "Age" ? -Date.parse(r.object.metadata.creationTimestamp ?? "") : r.cells[by] ?? "";
    };
    const compare = (a: Row, b: Row) => {
      if (by >= 0) {
        const x = value(a);
        const y = value(b);
        const n = typeof x === "number" && typeof y === "number" ? x - y : collator.compare(String(x), String(y));
        if (n !== 0) return sort.down ? -n : n;
      }
      return compareKeys(a, b);
    };
    return [...rows].sort(compare);
  }, [rows, sort, list.columns]);
  const first = Math.max(Math.floor(view.top / rowHeight) - 10, 0);
  const last = Math.min(first + Math.ceil(view.height / rowHeight) + 20, sorted.length);
  const head = (name: string, i: number) => (
    <th key={i} aria-sort={sort.column !== i ? "none" : sort.down ? "descending" : "ascending"}>
      <button class="head" onClick={() => setSort({ column: i, down: sort.column === i && !sort.down })}>{name}</button>
    </th>
  );
  return (
    <div class="rows" ref={box} tabIndex={0} role="region" aria-label={label}
      onScroll={() => setView({ top: box.current!.scrollTop, height: box.current!.clientHeight })}>
      <table aria-rowcount={sorted.length + 1}>
        <thead><tr>{allNamespaces && <th>Namespace</th>}{shown.map(([c, i]) => head(c.name, i))}</tr></thead>
        <tbody>
          {first > 0 && <tr class="space" aria-hidden="true"><td style={{ height: `${first * rowHeight}px` }} /></tr>}
          {sorted.slice(first, last).map((row, n) => {
            const m = row.object.metadata;
            return (
              <tr key={m.uid} aria-rowindex={first + n + 2} class={trouble(row.object, now) ? "bad" : ""}>
                {allNamespaces && <td>{m.namespace}</td>}
                {shown.map(([c, i]) => <td key={i}>{cell(c.name, row, i, now)}</td>)}
              </tr>
            );
          })}
          {last < sorted.length &&
            <tr class="space" aria-hidden="true"><td style={{ height: `${(sorted.length - last) * rowHeight}px` }} /></tr>}
        </tbody>
      </table>
    </div>
  );
}

function cell(column: string, row: Row, i: number, now: number) {
  const m = row.object.metadata;
  switch (column) {
    case "Name": return <a href={link("pod", m.namespace ?? "", m.name)}>{m.name}</a>;
    case "Age": return <Since time={m.creationTimestamp} now={now} />;
    case "Node": return row.object.spec?.nodeName
      ? <a href={link("node", row.object.spec.nodeName)}>{row.object.spec.nodeName}</a> : "<none>";
    default: return plain(String(row.cells[i] ?? ""));
  }
}

// workloadOf returns the workload of a pod: its controller, or the Deployment of its ReplicaSet.
export function workloadOf(pod: KubeObject): { kind: string; name: string } | undefined {
  const by = owner(pod);
  if (by?.kind !== "ReplicaSet") return by;
  const hash = pod.metadata.labels?.["pod-template-hash"];
  return hash && by.name.endsWith("-" + hash) ? { kind: "Deployment", name: by.name.slice(0, -hash.length - 1) } : by;
}
