// Lists that stay up to date by watches. Views share them.
import { useEffect, useState } from "preact/hooks";
import { APIError, get, open, readLines, type KubeObject } from "./api";

export interface Column {
  name: string;
  priority: number;
}

// Row is an object with the cells that kubectl get prints.
export interface Row {
  object: KubeObject;
  cells: (string | number)[];
}

export interface List {
  columns: Column[];
  rows: Map<string, Row>; // by UID
  loaded: boolean;
  live: boolean; // whether a watch is open
  error?: APIError;
}

const tableType = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";
const keepFor = 1_000; // a view that follows soon uses the list again; browsers limit the connections of HTTP/1.1
const batchDelay = 100;
const maxRetryDelay = 10_000;

class Source {
  list: List = { columns: [], rows: new Map(), loaded: false, live: false };
  private readonly listeners = new Set<() => void>();
  private abort?: AbortController;
  private unused?: ReturnType<typeof setTimeout>;
  private flush?: ReturnType<typeof setTimeout>;

  private readonly key: string;

  constructor(private readonly path: string, private readonly query: string) {
    this.key = path + "?" + query;
  }

  subscribe(listener: () => void): () => void {
    this.listeners.add(listener);
    sources.set(this.key, this);
    clearTimeout(this.unused);
    if (!this.abort) {
      this.abort = new AbortController();
      void this.run(this.abort.signal);
    }
    return () => {
      this.listeners.delete(listener);
      if (this.listeners.size > 0) return;
      this.unused = setTimeout(() => {
        this.abort?.abort();
        this.abort = undefined;
        sources.delete(this.key);
      }, keepFor);
    };
  }

  // changed notifies the views, at most once per batchDelay.
  private changed() {
    this.flush ??= setTimeout(() => {
      this.flush = undefined;
      this.list = { ...this.list };
      for (const listener of this.listeners) listener();
    }, this.list.loaded ? batchDelay : 0);
  }

  private async run(signal: AbortSignal) {
    let version = "";
    for (let failures = 0; !signal.aborted; ) {
      try {
        if (!version) version = await this.load(signal);
        version = await this.watch(version, signal);
        failures = 0;
      } catch (err) {
        if (signal.aborted) return;
        const error = err instanceof APIError ? err : new APIError(0, "Unreachable", "the server is unreachable");
        this.list.live = false;
        this.list.error = error;
        if (error.code === 410) {
          version = "";
          failures++;
        } else if (error.code === 403 || error.code === 404) {
          version = "";
          failures = Math.max(failures + 1, 6);
          this.list.rows = new Map();
        } else {
          failures++;
        }
        if (error.code === 401) return; // the page shows the sign-in
        this.changed();
        const delay = Math.min(250 * 2 ** Math.min(failures, 10), maxRetryDelay);
        await new Promise((done) => setTimeout(done, delay));
      }
    }
  }

  private async load(signal: AbortSignal): Promise<string> {
    const resp = await open(`${this.path}?${this.query}`, { headers: { Accept: tableType }, signal });
    const table = await resp.json();
    this.list.columns = table.columnDefinitions ?? [];
    this.list.rows = new Map((table.rows ?? []).map((row: Row) => [row.object.metadata.uid!, row]));
    this.list.loaded = true;
    this.list.error = undefined;
    this.changed();
    return table.metadata.resourceVersion;
  }

  // watch returns the version to continue from when the server ends the watch.
  private async watch(version: string, signal: AbortSignal): Promise<string> {
    const query = `${this.query}&watch=true&allowWatchBookmarks=true&resourceVersion=${encodeURIComponent(version)}`;
    const resp = await open(`${this.path}?${query}`, { headers: { Accept: tableType }, signal });
    this.list.live = true;
    this.list.error = undefined;
    this.changed();
    let problem: APIError | undefined;
    try {
      await readLines(resp, (line) => {
        const event = JSON.parse(line);
        if (event.type === "ERROR") {
          problem = new APIError(event.object.code, event.object.reason, event.object.message);
          return;
        }
        for (const row of (event.object.rows ?? []) as Row[]) {
          const meta = row.object.metadata;
          version = meta.resourceVersion ?? version;
          if (event.type === "DELETED") this.list.rows.delete(meta.uid!);
          else if (event.type !== "BOOKMARK") this.list.rows.set(meta.uid!, row);
        }
        if (event.type !== "BOOKMARK") this.changed();
      });
    } catch (err) {
      if (signal.aborted) throw err;
      // The connection was cut. The next watch continues at version.
    }
    if (problem) throw problem;
    this.list.live = false;
    this.changed();
    await new Promise((done) => setTimeout(done, 250));
    return version;
  }
}

const sources = new Map<string, Source>();

// useList returns a list that a watch keeps up to date. An empty path returns an empty list.
export function useList(path: string, query = "includeObject=Object"): List {
  const [, redraw] = useState(0);
  const key = path + "?" + query;
  const source = sources.get(key) ?? new Source(path, query);
  // Another view may have subscribed to a source for the same list since this one was drawn.
  useEffect(() => (path ? (sources.get(key) ?? source).subscribe(() => redraw((n) => n + 1)) : undefined), [key]);
  return source.list;
}

export interface Polled<T> {
  value?: T;
  error?: APIError;
}

// usePoll requests a path again and again while a view needs it. It does not use a connection in between.
export function usePoll<T = any>(path: string, seconds = 10, refresh: unknown = 0): Polled<T> {
  const [state, set] = useState<Polled<T> & { path: string }>({ path: "" });
  useEffect(() => {
    if (!path) return;
    let timer: ReturnType<typeof setTimeout>;
    let ended = false;
    const load = async () => {
      try {
        const value = await get<T>(path);
        if (!ended) set({ path, value });
      } catch (err) {
        if (!ended) set((old) => ({ path, value: old.path === path ? old.value : undefined, error: err as APIError }));
      }
      if (!ended) timer = setTimeout(load, seconds * 1000);
    };
    void load();
    return () => {
      ended = true;
      clearTimeout(timer);
    };
  }, [path, seconds, refresh]);
  return state.path === path ? state : {};
}
