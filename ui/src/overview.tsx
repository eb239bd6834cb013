// What runs, what does not, and why not.
import { useEffect, useRef, useState } from "preact/hooks";
import { open, type KubeObject } from "./api";
import { Events, Live, Problem, Since, chooseNamespace, link, useNow } from "./components";
import { explanation, objectPath, rollout, trouble, workloadKinds, type Trouble } from "./model";
import { NodeCard, podsByNode, useNodeMetrics } from "./nodes";
import { useList, usePoll } from "./watch";

const maxBad = 50; // pods that are listed
const maxReasons = 20; // pods whose reasons are requested from nodes
const maxInFlight = 4; // of these requests

interface BadPod extends Trouble {
  pod: KubeObject;
}

// useReasons requests the reasons of pods from their nodes, once for each version of a pod.
function useReasons(bad: BadPod[]): Map<string, Trouble> {
  const [reasons, set] = useState(new Map<string, Trouble & { version?: string }>());
  const inFlight = useRef(new Map<string, AbortController>()); // by UID
  useEffect(() => () => inFlight.current.forEach((request) => request.abort()), []);
  const start = async ({ pod, ...known }: BadPod) => {
    const m = pod.metadata;
    const uid = m.uid!;
    const request = new AbortController();
    inFlight.current.set(uid, request);
    let found: Trouble = known;
    try {
      const resp = await open(objectPath("/api/v1", "pods", m.namespace, m.name) + "/why", { signal: request.signal });
      const why = await resp.json();
      if (why.summary) found = { reason: known.reason, sentence: explanation(why), since: why.waitingFor?.[0]?.since ?? known.since };
    } catch {
      // The page falls back to the status of the pod.
    }
    if (request.signal.aborted) return;
    inFlight.current.delete(uid);
    set((old) => new Map(old).set(uid, { ...found, version: m.resourceVersion })); // which starts the next request
  };
  useEffect(() => {
    const uids = new Set(bad.map((b) => b.pod.metadata.uid!));
    for (const [uid, request] of inFlight.current) {
      if (uids.has(uid)) continue;
      request.abort();
      inFlight.current.delete(uid);
    }
    if ([...reasons.keys()].some((uid) => !uids.has(uid))) set((old) => new Map([...old].filter(([uid]) => uids.has(uid))));
    for (const b of bad.filter((b) => b.pod.spec?.nodeName).slice(0, maxReasons)) {
      const { uid, resourceVersion } = b.pod.metadata;
      if (inFlight.current.size >= maxInFlight) break;
      if (!inFlight.current.has(uid!) && reasons.get(uid!)?.version !== resourceVersion) void start(b);
    }
  });
  return reasons;
}

export function Overview({ namespace }: { namespace: string }) {
  const nodes = useList("/api/v1/nodes");
  const pods = useList(objectPath("/api/v1", "pods", namespace));
  const deployments = useList(objectPath("/apis/apps/v1", "deployments", namespace));
  const usage = useNodeMetrics();
  const now = useNow();
  const grouped = podsByNode(pods);
  const bad: BadPod[] = [];
  for (const { object } of pods.rows.values()) {
    const t = trouble(object, now);
    if (t) bad.push({ pod: object, ...t });
  }
  bad.sort((a, b) => Date.parse(b.since ?? "") - Date.parse(a.since ?? ""));
  const reasons = useReasons(bad);
  const where = namespace ? ` in ${namespace}` : "";
  return (
    <section>
      <header class="title"><h1>Overview</h1><Live list={pods} /></header>
      <h2>Pods that are not well</h2>
      <Problem error={pods.error} what={namespace ? `list pods in ${namespace}` : "list pods of all namespaces"} hint={namespace ? "" : chooseNamespace} />
      {pods.loaded && !pods.error && bad.length === 0 &&
        <p class="state good">All {pods.rows.size} pods{where} are well.</p>}
      {bad.length > 0 && <ul class="bad-pods">{bad.slice(0, maxBad).map((b) => {
        const m = b.pod.metadata;
        const r = reasons.get(m.uid!) ?? b;
        return (
          <li key={m.uid}>
            <a href={link("pod", m.namespace!, m.name)}>{m.namespace}/{m.name}</a>
            <span class="reason">{b.reason}</span>
            <span class="sentence">{r.sentence}</span>
            <span class="dim">{r.since && <>for <Since time={r.since} now={now} /></>}</span>
          </li>
        );
      })}</ul>}
      {bad.length > maxBad && <p class="note">And {bad.length - maxBad} more: see <a href="#/pods">Pods</a>.</p>}
      <h2>Nodes</h2>
      <Problem error={nodes.error} what="list nodes" />
      <div class="cards">{[...nodes.rows.values()].map(({ object }) =>
        <NodeCard key={object.metadata.uid} node={object} pods={grouped.get(object.metadata.name) ?? []}
          usage={usage.get(object.metadata.name)} now={now} />)}</div>
      <h2>Workloads</h2>
      <Problem error={deployments.error} what={`list Deployments${where}`} />
      <Workloads namespace={namespace} deployments={[...deployments.rows.values()].map((r) => ({ ...r.object, kind: "Deployment" }))} now={now} />
      <h2>Recent warnings</h2>
      <Warnings namespace={namespace} now={now} />
    </section>
  );
}

function Workloads({ namespace, deployments, now }: { namespace: string; deployments: KubeObject[]; now: number }) {
  // Browsers limit the connections to a server without HTTP/2, so only Deployments are watched.
  const stateful = usePoll(objectPath("/apis/apps/v1", "statefulsets", namespace));
  const daemons = usePoll(objectPath("/apis/apps/v1", "daemonsets", namespace));
  const items = (polled: any, kind: string): KubeObject[] => (polled.value?.items ?? []).map((o: KubeObject) => ({ ...o, kind }));
  const all = [...deployments, ...items(stateful, workloadKinds[1]!.kind), ...items(daemons, workloadKinds[2]!.kind)];
  all.sort((a, b) => `${a.metadata.namespace}/${a.metadata.name}`.localeCompare(`${b.metadata.namespace}/${b.metadata.name}`));
  if (all.length === 0) return <p class="note">No workloads.</p>;
  return (
    <div class="scroll"><table>
      <thead><tr><th>Namespace</th><th>Name</th><th>Kind</th><th>Ready</th><th>Rollout</th><th>Age</th></tr></thead>
      <tbody>{all.map((o) => {
        const r = rollout(o);
        return (
          <tr key={o.metadata.uid} class={r.done ? "" : "bad"}><td>{o.metadata.namespace}</td>
            <td><a href={link("workload", o.kind!, o.metadata.namespace!, o.metadata.name)}>{o.metadata.name}</a></td>
            <td>{o.kind}</td><td>{r.ready}/{r.want}</td><td>{r.text}</td><td><Since time={o.metadata.creationTimestamp} now={now} /></td></tr>
        );
      })}</tbody>
    </table></div>
  );
}

function Warnings({ namespace, now }: { namespace: string; now: number }) {
  const { value, error } = usePoll(`${objectPath("/api/v1", "events", namespace)}?fieldSelector=type%3DWarning&limit=500`);
  if (!value) return error ? <Problem error={error} what="read events" /> : <p class="note">Loading.</p>;
  const at = (e: any) => Date.parse(e.series?.lastObservedTime ?? e.lastTimestamp ?? e.eventTime ?? e.metadata.creationTimestamp);
  return <Events of={[...value.items].sort((a, b) => at(b) - at(a)).slice(0, 20)} now={now} withObject />;
}
