// The frame of the page: sign-in, navigation, and the view of the address.
import { render } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { APIError, forgetAnswers, getSession, setSignedOutHandler, signIn, signOut, type Session } from "./api";
import { Live, PodTable, Problem, chooseNamespace, searchText } from "./components";
import { count, plain } from "./format";
import { objectPath } from "./model";
import { NodeView, NodesView } from "./nodes";
import { Overview } from "./overview";
import { PodView } from "./pod";
import { ServiceView, ServicesView } from "./services";
import { useList, usePoll } from "./watch";
import { WorkloadView } from "./workload";

function useRoute(): string[] {
  const read = () => {
    try {
      return location.hash.replace(/^#\/?/, "").split("/").map(decodeURIComponent);
    } catch {
      return [""];
    }
  };
  const [route, set] = useState(read);
  useEffect(() => {
    const changed = () => set(read());
    addEventListener("hashchange", changed);
    return () => removeEventListener("hashchange", changed);
  }, []);
  return route;
}

function App() {
  const route = useRoute();
  const [session, setSession] = useState<Session>();
  const [message, setMessage] = useState<string>();
  const [starting, setStarting] = useState(true);
  const code = route[0] === "link" ? route[1] : undefined;
  const attempt = useRef(0);
  useEffect(() => setSignedOutHandler((text) => { setSession(undefined); setMessage(text); forgetAnswers(); }), []);
  useEffect(() => {
    if (!code && attempt.current > 0) return; // the code has left the address
    const current = ++attempt.current;
    const request = async () => {
      if (!code) return getSession();
      try {
        return await signIn({ code });
      } catch (err) {
        if ((err as APIError).code === 409) return getSession(); // the connection has credentials, as with kubectl proxy
        throw err;
      }
    };
    const start = async () => {
      if (code) {
        history.replaceState(null, "", "#/"); // the code works once: keep it out of the history
        dispatchEvent(new HashChangeEvent("hashchange"));
      }
      for (let tries = 1; ; tries++) {
        try {
          const found = await request();
          if (current !== attempt.current) return;
          if (code) forgetAnswers();
          setMessage(undefined);
          setSession(found);
          break;
        } catch (err) {
          if (current !== attempt.current) return;
          const e = err as APIError;
          if (e.code === 0 && tries < 10) { // the server may be starting
            await new Promise((done) => setTimeout(done, 1000));
            if (current !== attempt.current) return;
            continue;
          }
          if (code || e.code !== 401) setMessage(plain(e.message));
          break;
        }
      }
      setStarting(false);
    };
    void start();
  }, [code ?? ""]);
  if (starting) return <p class="note" role="status">Loading.</p>;
  if (!session) return <SignIn message={message} done={(s) => { setMessage(undefined); setSession(s); }} />;
  const leave = async () => {
    await signOut();
    forgetAnswers();
    setSession(undefined);
    setMessage("You are signed out.");
  };
  return <Frame route={route} session={session} leave={leave} />;
}

function SignIn({ message, done }: { message?: string; done: (s: Session) => void }) {
  const [token, setToken] = useState("");
  const [error, setError] = useState<string>();
  const submit = async (e: Event) => {
    e.preventDefault();
    try {
      done(await signIn({ token }));
    } catch (err) {
      setError(plain((err as Error).message));
    }
  };
  return (
    <main class="sign-in">
      <h1>Sign in to berth</h1>
      {message && <p class="note" role="status">{message}</p>}
      <form onSubmit={submit}>
        <label for="token">Token</label>
        <textarea id="token" rows={4} required autocomplete="off" spellcheck={false} value={token}
          onInput={(e) => setToken(e.currentTarget.value)} />
        {error && <p class="error" role="alert">{error}</p>}
        <button class="primary" type="submit">Sign in</button>
      </form>
      <h2>Where to get access</h2>
      <p>On the host of the server, print a link that signs you in:</p>
      <pre class="command">berth-control ui</pre>
      <p>Or create a token of a service account:</p>
      <pre class="command">kubectl create token NAME -n NAMESPACE</pre>
    </main>
  );
}

const sections: [string, string][] = [["overview", "Overview"], ["pods", "Pods"], ["services", "Services"], ["nodes", "Nodes"]];
const parents: Record<string, string> = { "": "overview", pod: "pods", workload: "overview", service: "services", node: "nodes" };
const namespaceKey = "berth-namespace";

function homeNamespace(user: string): string {
  return /^system:serviceaccount:([^:]+):/.exec(user)?.[1] ?? "";
}

function Frame({ route, session, leave }: { route: string[]; session: Session; leave: () => Promise<void> }) {
  const [namespace, setNamespace] = useState(sessionStorage.getItem(namespaceKey) ?? "");
  const [error, setError] = useState<APIError>();
  const search = useRef<HTMLInputElement>(null);
  const choose = (ns: string) => { sessionStorage.setItem(namespaceKey, ns); setNamespace(ns); };
  useEffect(() => {
    const onKey = (e: KeyboardEvent) => {
      const target = e.target as HTMLElement;
      if (e.key !== "/" || e.ctrlKey || e.metaKey || e.altKey || /INPUT|TEXTAREA|SELECT/.test(target.tagName)) return;
      const box = document.querySelector<HTMLInputElement>("main input[type=search]");
      if (box) { e.preventDefault(); box.focus(); } else { e.preventDefault(); location.hash = "#/pods"; }
    };
    addEventListener("keydown", onKey);
    return () => removeEventListener("keydown", onKey);
  }, []);
  const view = route[0] ?? "";
  const section = parents[view] ?? view;
  useEffect(() => {
    document.title = [route.slice(1).filter(Boolean).pop(), sections.find(([s]) => s === section)?.[1], "berth"].filter(Boolean).join(" · ");
  }, [route.join("/")]);
  return (
    <>
      <a class="skip" href="#main" onClick={(e) => { e.preventDefault(); document.getElementById("main")?.focus(); }}>Skip to content</a>
      <header class="top">
        <span class="brand">berth</span>
        <nav aria-label="Main">{sections.map(([name, text]) =>
          <a key={name} href={`#/${name}`} aria-current={section === name ? "page" : undefined}>{text}</a>)}</nav>
        <Namespace value={namespace} choose={choose} user={session.user} />
        <span class="user" title={(session.groups ?? []).join(", ")}>{plain(session.user)}</span>
        {session.signOut && <button onClick={() => void leave().catch(setError)}>Sign out</button>}
      </header>
      <Problem error={error} what="sign out" />
      <main id="main" tabIndex={-1} key={route.slice(0, 3).join("/")}>
        {section === "overview" && view !== "workload" ? <Overview key={namespace} namespace={namespace} />
          : view === "pods" ? <Pods key={namespace} namespace={namespace} search={search} />
          : view === "pod" ? <PodView namespace={route[1] ?? ""} name={route[2] ?? ""} tab={route[3] ?? ""} />
          : view === "workload" ? <WorkloadView kind={route[1] ?? ""} namespace={route[2] ?? ""} name={route[3] ?? ""} />
          : view === "services" ? <ServicesView key={namespace} namespace={namespace} />
          : view === "service" ? <ServiceView namespace={route[1] ?? ""} name={route[2] ?? ""} />
          : view === "nodes" ? <NodesView />
          : view === "node" ? <NodeView name={route[1] ?? ""} />
          : <p class="note">This page does not exist.</p>}
      </main>
    </>
  );
}

// Namespace selects a namespace. A user who may not list namespaces types the name.
function Namespace({ value, choose, user }: { value: string; choose: (ns: string) => void; user: string }) {
  const { value: list, error } = usePoll("/api/v1/namespaces", 60);
  const [text, setText] = useState(value || homeNamespace(user));
  useEffect(() => {
    if (error?.code === 403 && !value && homeNamespace(user)) choose(homeNamespace(user));
  }, [error?.code]);
  if (error?.code === 403) {
    return (
      <form class="namespace" onSubmit={(e) => { e.preventDefault(); choose(text.trim()); }}>
        <label>Namespace <input value={text} onInput={(e) => setText(e.currentTarget.value)} onBlur={() => choose(text.trim())} /></label>
      </form>
    );
  }
  const names: string[] = (list?.items ?? []).map((n: any) => n.metadata.name);
  if (value && !names.includes(value)) names.push(value);
  return (
    <label class="namespace">Namespace <select value={value} onChange={(e) => choose(e.currentTarget.value)}>
      <option value="">all</option>
      {names.sort().map((n) => <option key={n} value={n}>{n}</option>)}
    </select></label>
  );
}

// Pods lists pods. The search matches names, nodes, addresses, states, images and labels; all words must match.
function Pods({ namespace, search }: { namespace: string; search: { current: HTMLInputElement | null } }) {
  const list = useList(objectPath("/api/v1", "pods", namespace));
  const [query, setQuery] = useState("");
  const words = query.toLowerCase().split(/\s+/).filter(Boolean);
  const rows = useMemo(() => {
    const all = [...list.rows.values()];
    if (words.length === 0) return all;
    return all.filter((r) => words.every((w) => searchText(r).includes(w)));
  }, [list, words.join(" ")]);
  return (
    <section class="fill">
      <header class="title"><h1>Pods</h1><Live list={list} />
        <input type="search" ref={search} placeholder="Search: name, node, state, label=value, Kind/name" aria-label="Search pods"
          aria-keyshortcuts="/" value={query} onInput={(e) => setQuery(e.currentTarget.value)} />
        <span class="dim" role="status">{words.length ? `${rows.length} of ${count(list.rows.size, "pod")}` : count(rows.length, "pod")}</span>
      </header>
      <Problem error={list.error} what={namespace ? `list pods in ${namespace}` : "list pods of all namespaces"} hint={namespace ? "" : chooseNamespace} />
      <PodTable list={list} rows={rows} allNamespaces={!namespace} label="Pods" />
    </section>
  );
}

render(<App />, document.getElementById("app")!);
