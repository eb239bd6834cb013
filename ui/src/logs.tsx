// Logs of containers: followed over restarts, searched, and with those of the previous instance.
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { APIError, open, readLines, type KubeObject } from "./api";
import { Problem } from "./components";
import { compareTimes, count, plain } from "./format";

interface Line {
  n: number;
  time: string;
  source: string;
  text: string;
}

const maxLines = 5_000;
const maxLength = 8_192; // characters of a line
const lineHeight = 18;
const tail = 500;
const maxRetryDelay = 15_000;
const allContainers = "*";

function parse(raw: string, source: string, n: number): Line {
  const space = raw.indexOf(" ");
  const text = raw.slice(space + 1);
  const cut = text.length > maxLength ? `${text.slice(0, maxLength)} … ${text.length - maxLength} more characters` : text;
  return { n, time: raw.slice(0, space), source, text: plain(cut) };
}

// Last is the time of the last line of a container, and the texts of the last lines with this time.
interface Last {
  time: string;
  texts: string[];
}

function useLogs(path: string, containers: string[], instances: string, previous: boolean, follow: boolean) {
  const [state, set] = useState<{ lines: Line[]; error?: APIError; open: boolean }>({ lines: [], open: false });
  const kept = useRef<{ key: string; lines: Line[]; last: Record<string, Last>; next: number }>(
    { key: "", lines: [], last: {}, next: 1 });
  useEffect(() => {
    const key = [path, containers.join(), previous].join(" ");
    if (kept.current.key !== key) kept.current = { key, lines: [], last: {}, next: 1 };
    const k = kept.current;
    const abort = new AbortController();
    const errors = new Map<string, APIError>(); // by container, of the last request
    let running = 0;
    let flush: ReturnType<typeof setTimeout> | undefined;
    const changed = () => {
      flush ??= setTimeout(() => {
        flush = undefined;
        if (k.lines.length > maxLines) k.lines = k.lines.slice(-maxLines);
        set({ lines: [...k.lines], error: [...errors.values()][0], open: running > 0 });
      }, 100);
    };
    // read returns whether the response contained new lines.
    const read = async (container: string): Promise<boolean> => {
      let received = false;
      const query = new URLSearchParams({ container, timestamps: "true" });
      const since = k.last[container];
      if (since) query.set("sinceTime", since.time);
      else query.set("tailLines", String(tail));
      if (previous) query.set("previous", "true");
      else if (follow) query.set("follow", "true");
      // sinceTime has a precision of a second: the response begins with lines that are known.
      let known = since && [...since.texts];
      running++;
      try {
        const resp = await open(`${path}/log?${query}`, { signal: abort.signal });
        if (errors.delete(container)) changed();
        await readLines(resp, (raw) => {
          const line = parse(raw, container, k.next++);
          if (since && known) {
            const order = compareTimes(line.time, since.time);
            if (order < 0) return;
            const at = order === 0 ? known.indexOf(line.text) : -1;
            if (at >= 0) {
              known.splice(at, 1);
              return;
            }
            if (order > 0) known = undefined;
          }
          const last = k.last[container];
          if (last && compareTimes(line.time, last.time) === 0) last.texts.push(line.text);
          else if (Date.parse(line.time)) k.last[container] = { time: line.time, texts: [line.text] };
          received = true;
          k.lines.push(line);
          changed();
        });
      } catch (err) {
        if (abort.signal.aborted) return received;
        errors.set(container, err instanceof APIError ? err : new APIError(0, "Unreachable", "the connection was interrupted"));
      }
      running--;
      changed();
      return received;
    };
    // run repeats requests while the log is followed: a stream ends with its container, its node or the server.
    const run = async (container: string) => {
      for (let failures = 0; !abort.signal.aborted; failures++) {
        if (await read(container)) failures = 0;
        if (!follow || previous || errors.get(container)?.code === 401) return;
        await new Promise((done) => setTimeout(done, Math.min(1000 * 2 ** failures, maxRetryDelay)));
      }
    };
    for (const c of containers) void run(c);
    set({ lines: [...k.lines], open: running > 0 });
    return () => {
      abort.abort();
      clearTimeout(flush);
    };
    // instances changes when a container restarts: the log continues with the new instance.
  }, [path, containers.join(), instances, previous, follow]);
  return state;
}

export function Logs({ pod, path }: { pod: KubeObject; path: string }) {
  const status = pod.status ?? {};
  const all = [...(status.initContainerStatuses ?? []), ...(status.containerStatuses ?? []),
    ...(status.ephemeralContainerStatuses ?? [])];
  const main = (pod.spec?.containers ?? []).map((c: any) => c.name as string);
  const [choice, setChoice] = useState(main[0] ?? "");
  const [previous, setPrevious] = useState(false);
  const [follow, setFollow] = useState(true);
  const [times, setTimes] = useState(false);
  const [search, setSearch] = useState("");
  const [only, setOnly] = useState(true);
  const containers = choice === allContainers ? main : [choice];
  const started = containers.filter((name: string) => {
    const c = all.find((s) => s.name === name);
    return previous ? c?.lastState?.terminated : c?.containerID;
  });
  const instances = all.filter((c) => started.includes(c.name)).map((c) => c.containerID).join();
  const { lines, error, open: reading } = useLogs(path, started, previous ? "" : instances, previous, follow);
  const needle = search.toLowerCase();
  const hit = (l: Line) => needle !== "" && l.text.toLowerCase().includes(needle);
  const found = needle ? lines.filter(hit) : lines;
  const shown = needle && only ? found : lines;
  const names = [...(pod.spec?.initContainers ?? []), ...(pod.spec?.containers ?? []), ...(pod.spec?.ephemeralContainers ?? [])]
    .map((c: any) => c.name as string);
  return (
    <div>
      <div class="tools">
        <label>Container <select value={choice} onChange={(e) => setChoice(e.currentTarget.value)}>
          {names.map((n) => <option key={n} value={n}>{n}</option>)}
          {main.length > 1 && <option value={allContainers}>all containers</option>}
        </select></label>
        <label><input type="checkbox" checked={previous} onChange={(e) => setPrevious(e.currentTarget.checked)} /> previous instance</label>
        <label><input type="checkbox" checked={follow} onChange={(e) => setFollow(e.currentTarget.checked)} /> follow</label>
        <label><input type="checkbox" checked={times} onChange={(e) => setTimes(e.currentTarget.checked)} /> times</label>
        <input type="search" aria-label="Search the log" placeholder="Search" value={search}
          onInput={(e) => setSearch(e.currentTarget.value)} />
        <label><input type="checkbox" checked={only} onChange={(e) => setOnly(e.currentTarget.checked)} /> matches only</label>
        <span class="dim" role="status">{needle ? `${found.length} of ${count(lines.length, "line")}` : count(lines.length, "line")}
          {reading && follow && !previous ? ", following" : ""}</span>
      </div>
      <Problem error={error} what="read the log" />
      {started.length === 0 && <p class="note">{previous ? "There is no previous instance." : "The container has not started yet."}</p>}
      <LogBox lines={shown} stick={follow && !previous} times={times} sources={containers.length > 1} mark={only ? "" : needle} />
    </div>
  );
}

// LogBox draws the visible lines only, and stays at the end while stick is set and the user has not scrolled up.
function LogBox({ lines, stick, times, sources, mark }:
  { lines: Line[]; stick: boolean; times: boolean; sources: boolean; mark: string }) {
  const box = useRef<HTMLDivElement>(null);
  const atEnd = useRef(true);
  const [top, setTop] = useState(0);
  useLayoutEffect(() => {
    if (stick && atEnd.current && box.current) box.current.scrollTop = box.current.scrollHeight;
  }, [lines, stick]);
  const first = Math.max(Math.floor(top / lineHeight) - 20, 0);
  const last = Math.min(first + 100, lines.length);
  const onScroll = () => {
    const el = box.current!;
    atEnd.current = el.scrollTop + el.clientHeight >= el.scrollHeight - lineHeight;
    setTop(el.scrollTop);
  };
  return (
    <div class="log" ref={box} onScroll={onScroll} tabIndex={0} role="log" aria-live="off" aria-label="Log">
      <div class="log-space" style={{ height: `${lines.length * lineHeight}px` }}>
        <div style={{ transform: `translateY(${first * lineHeight}px)` }}>
          {lines.slice(first, last).map((l) => (
            <div key={l.n} class={"log-line" + (mark && l.text.toLowerCase().includes(mark) ? " hit" : "")}>
              {times && <span class="dim">{l.time} </span>}
              {sources && <span class="source">{l.source} </span>}
              {l.text}
            </div>
          ))}
        </div>
      </div>
    </div>
  );
}
