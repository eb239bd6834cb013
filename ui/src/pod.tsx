// One pod.
import { useState } from "preact/hooks";
import { write, type KubeObject } from "./api";
import { ActionButton, quote } from "./actions";
import { Conditions, Events, Facts, Labels, Live, Problem, Since, link, objectLink, useNow, workloadOf } from "./components";
import { bytes, cores, plain, quantity, yaml } from "./format";
import { Logs } from "./logs";
import { exit, explanation, objectPath, trouble } from "./model";
import { Timeline } from "./timeline";
import { useList, usePoll } from "./watch";

const tabs = ["Summary", "Timeline", "Logs", "Events", "YAML"];

export function PodView({ namespace, name, tab }: { namespace: string; name: string; tab: string }) {
  const list = useList(objectPath("/api/v1", "pods", namespace),
    `includeObject=Object&fieldSelector=${encodeURIComponent("metadata.name=" + name)}`);
  const now = useNow();
  const pod = [...list.rows.values()].map((r) => r.object).pop();
  const path = objectPath("/api/v1", "pods", namespace, name);
  const current = tabs.find((t) => t.toLowerCase() === tab) ?? "Summary";
  if (!pod) {
    return (
      <section>
        <h1>Pod {name}</h1>
        <Problem error={list.error} what={`read the pod ${namespace}/${name}`} />
        {list.loaded && !list.error && <p class="note">There is no pod {name} in the namespace {namespace}.</p>}
      </section>
    );
  }
  const by = workloadOf(pod);
  const refresh = pod.metadata.resourceVersion;
  return (
    <section>
      <header class="title">
        <h1>Pod {name}</h1>
        <Live list={list} />
        <div class="buttons">
          <ActionButton action={{
            label: "Delete", danger: true, access: { verb: "delete", resource: "pods", namespace, name },
            command: `kubectl delete pod ${quote(name)} -n ${quote(namespace)}`,
            run: () => write("DELETE", path, undefined),
            form: <p>{by ? `Its ${by.kind} creates a new pod.` : "No controller recreates this pod."}</p>,
          }} />
        </div>
      </header>
      <Why pod={pod} path={path} now={now} />
      <nav class="tabs" aria-label="Parts of the pod">
        {tabs.map((t) => (
          <a key={t} href={link("pod", namespace, name, t.toLowerCase())} aria-current={t === current ? "page" : undefined}>{t}</a>
        ))}
      </nav>
      {current === "Summary" && <Summary pod={pod} now={now} />}
      {current === "Timeline" && <Timeline path={path} refresh={refresh} />}
      {current === "Logs" && <Logs pod={pod} path={path} />}
      {current === "Events" && <PodEvents pod={pod} now={now} />}
      {current === "YAML" && <Manifest of={pod} />}
    </section>
  );
}

// Why shows the explanation of the agent. Without one it falls back to the status.
function Why({ pod, path, now }: { pod: KubeObject; path: string; now: number }) {
  const { value, error } = usePoll(pod.spec?.nodeName ? `${path}/why` : "", 10, pod.metadata.resourceVersion);
  const bad = trouble(pod, now);
  if (!value) {
    return (
      <div class={"why " + (bad ? "bad" : "good")}>
        <p class="why-summary">{bad ? bad.sentence : `The pod is ${(pod.status?.phase ?? "unknown").toLowerCase()}.`}</p>
        {error && error.code !== 403 && <p class="dim">No explanation from the node: {plain(error.message)}</p>}
      </div>
    );
  }
  const waits: any[] = value.waitingFor ?? [];
  return (
    <div class={"why " + (bad ? "bad" : "good")}>
      <p class="why-summary">{explanation(value)}</p>
      {waits.length > 0 && <ul>{waits.map((w, i) => (
        <li key={i}><strong>{plain([w.reason, w.target].filter(Boolean).join(" "))}</strong>: {plain(w.message ?? "")}
          <span class="dim">{w.since && <> for <Since time={w.since} now={now} /></>}
            {w.failures > 0 && `, ${w.failures} consecutive failures`}
            {w.until && `, until ${new Date(w.until).toLocaleTimeString()}`}</span>
          {w.details?.length > 0 && <div class="dim">{plain(w.details.map((d: any) => `${d.name}: ${d.value}`).join(", "))}</div>}
        </li>
      ))}</ul>}
      {value.inProgress?.length > 0 && <p>In progress: {value.inProgress.map((o: any) =>
        plain([o.action, o.target, o.detail].filter(Boolean).join(" "))).join(", ")}</p>}
      {value.next?.length > 0 && <p>Next: {value.next.map((s: any) => plain([s.action, s.target].filter(Boolean).join(" ")) +
        (s.at ? ` at ${new Date(s.at).toLocaleTimeString()}` : "") + (s.after ? ` after ${plain(s.after)}` : "")).join(", then ")}</p>}
    </div>
  );
}

function Summary({ pod, now }: { pod: KubeObject; now: number }) {
  const spec = pod.spec ?? {};
  const status = pod.status ?? {};
  const by = workloadOf(pod);
  const namespace = pod.metadata.namespace!;
  return (
    <>
      <Facts of={[
        ["Namespace", namespace],
        ["Node", spec.nodeName && <a href={link("node", spec.nodeName)}>{spec.nodeName}</a>],
        ["Addresses", (status.podIPs ?? []).map((a: any) => a.ip).join(", ")],
        ["Controlled by", by && objectLink({ ...by, namespace })],
        ["Created", <Since time={pod.metadata.creationTimestamp} now={now} />],
        ["QoS class", status.qosClass], ["Priority", spec.priorityClassName ?? String(spec.priority ?? 0)],
        ["Service account", spec.serviceAccountName], ["Restart policy", spec.restartPolicy],
        ["Labels", <Labels of={pod.metadata.labels} />],
      ]} />
      <h2>Containers</h2>
      <Containers pod={pod} now={now} />
      <h2>Conditions</h2>
      <Conditions of={status.conditions} now={now} />
      <h2>Volumes</h2>
      <Volumes pod={pod} />
    </>
  );
}

function Containers({ pod, now }: { pod: KubeObject; now: number }) {
  const { value: usage } = usePoll(objectPath("/apis/metrics.k8s.io/v1beta1", "pods", pod.metadata.namespace, pod.metadata.name), 15);
  const groups: [string, any[], any[]][] = [
    ["init", pod.spec?.initContainers ?? [], pod.status?.initContainerStatuses ?? []],
    ["", pod.spec?.containers ?? [], pod.status?.containerStatuses ?? []],
    ["ephemeral", pod.spec?.ephemeralContainers ?? [], pod.status?.ephemeralContainerStatuses ?? []],
  ];
  return <div class="cards">{groups.flatMap(([type, specs, statuses]) => specs.map((c) => {
    const s = statuses.find((x) => x.name === c.name);
    const used = usage?.containers?.find((x: any) => x.name === c.name)?.usage;
    const requests = c.resources?.requests ?? {};
    const limits = c.resources?.limits ?? {};
    const kind = type === "init" && c.restartPolicy === "Always" ? "sidecar" : type;
    const resource = (name: string, format: (n: number) => string) => [
      requests[name] && `requests ${requests[name]}`, limits[name] && `limit ${limits[name]}`,
      used?.[name] && `uses ${format(quantity(used[name]))}`].filter(Boolean).join(", ");
    return (
      <article class="card" key={c.name}>
        <h3>{c.name} {kind && <span class="dim">{kind}</span>}</h3>
        <p class={stateClass(s)}>{stateText(s, now)}</p>
        {s?.lastState?.terminated && <p>Before: ended with {plain(exit(s.lastState.terminated))}{" "}
          <Since time={s.lastState.terminated.finishedAt} now={now} /> ago</p>}
        <Facts of={[
          ["Image", <span class="break">{plain(c.image)}</span>],
          ["Restarts", String(s?.restartCount ?? 0)], ["Ready", s ? (s.ready ? "yes" : "no") : "no"],
          ["CPU", resource("cpu", cores)], ["Memory", resource("memory", bytes)],
          ["Ports", (c.ports ?? []).map((p: any) => `${p.name ? p.name + " " : ""}${p.containerPort}/${p.protocol ?? "TCP"}`).join(", ")],
          ...["startupProbe", "readinessProbe", "livenessProbe"].filter((p) => c[p])
            .map((p) => [p.replace("Probe", " probe"), plain(probeText(c[p]))] as [string, string]),
        ]} />
      </article>
    );
  }))}</div>;
}

function stateClass(s: any): string {
  if (s?.state?.running) return s.ready ? "state good" : "state";
  return s?.state?.terminated?.exitCode === 0 ? "state" : "state bad";
}

function stateText(s: any, now: number) {
  const state = s?.state ?? {};
  if (state.running) return <>Running for <Since time={state.running.startedAt} now={now} /></>;
  if (state.terminated) return <>Ended with {plain(exit(state.terminated))} <Since time={state.terminated.finishedAt} now={now} /> ago</>;
  if (state.waiting) return plain(`Waiting: ${state.waiting.reason ?? ""}${state.waiting.message ? ": " + state.waiting.message : ""}`);
  return "Not started";
}

function probeText(p: any): string {
  const what = p.exec ? `runs ${p.exec.command?.join(" ")}`
    : p.httpGet ? `GET ${(p.httpGet.scheme ?? "HTTP").toLowerCase()}://:${p.httpGet.port}${p.httpGet.path ?? "/"}`
      : p.tcpSocket ? `connects to port ${p.tcpSocket.port}` : p.grpc ? `gRPC on port ${p.grpc.port}` : "unknown";
  return `${what} every ${p.periodSeconds ?? 10}s, fails after ${p.failureThreshold ?? 3}`;
}

function Volumes({ pod }: { pod: KubeObject }) {
  const volumes: any[] = pod.spec?.volumes ?? [];
  if (volumes.length === 0) return <p class="note">No volumes.</p>;
  const mounts = (name: string) => [...(pod.spec?.initContainers ?? []), ...(pod.spec?.containers ?? [])].flatMap((c: any) =>
    (c.volumeMounts ?? []).filter((m: any) => m.name === name).map((m: any) => `${c.name}:${m.mountPath}${m.readOnly ? " (read-only)" : ""}`));
  return (
    <div class="scroll"><table>
      <thead><tr><th>Name</th><th>Source</th><th>Mounted at</th></tr></thead>
      <tbody>{volumes.map((v) => {
        const [kind, source] = Object.entries<any>(v).find(([k]) => k !== "name") ?? ["emptyDir", {}];
        const ref = source?.name ?? source?.secretName ?? source?.claimName ?? source?.path ?? source?.driver ?? "";
        return <tr key={v.name}><td>{v.name}</td><td>{plain([kind, ref].filter(Boolean).join(" "))}</td>
          <td class="wrap">{plain(mounts(v.name).join(", "))}</td></tr>;
      })}</tbody>
    </table></div>
  );
}

function PodEvents({ pod, now }: { pod: KubeObject; now: number }) {
  const selector = encodeURIComponent(`involvedObject.uid=${pod.metadata.uid}`);
  const { value, error } = usePoll(
    `${objectPath("/api/v1", "events", pod.metadata.namespace)}?fieldSelector=${selector}`, 10, pod.metadata.resourceVersion);
  if (error) return <Problem error={error} what="read events" />;
  return value ? <Events of={value.items} now={now} /> : <p class="note">Loading.</p>;
}

// Manifest shows an object as YAML, without managed fields.
export function Manifest({ of }: { of: KubeObject }) {
  const [copied, setCopied] = useState(false);
  const { managedFields: _, ...metadata } = of.metadata as any;
  const text = yaml({ apiVersion: of.apiVersion, kind: of.kind, ...of, metadata });
  return (
    <>
      <div class="tools"><button onClick={() => void navigator.clipboard?.writeText(text).then(() => setCopied(true))}>
        {copied ? "Copied" : "Copy"}</button></div>
      <pre class="yaml" tabIndex={0}>{plain(text)}</pre>
    </>
  );
}
