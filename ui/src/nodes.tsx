// Nodes, and one node.
import { mergePatch, write, type KubeObject } from "./api";
import { ActionButton, quote } from "./actions";
import { Bar, Conditions, Events, Facts, Labels, Live, PodTable, Problem, Since, link, useNow } from "./components";
import { bytes, cores, plain, quantity } from "./format";
import { active, condition, objectPath, requested } from "./model";
import { useList, usePoll, type List } from "./watch";

// nodeState returns what is wrong with a node, or "Ready".
export function nodeState(node: KubeObject): { text: string; bad: boolean } {
  const conditions: any[] = node.status?.conditions ?? [];
  const ready = condition(node, "Ready");
  const parts: string[] = [];
  if (ready?.status !== "True") parts.push(ready?.status === "Unknown" ? "Unreachable" : "Not ready");
  for (const c of conditions) if (c.type !== "Ready" && c.status === "True") parts.push(c.type);
  const bad = parts.length > 0;
  if (!bad) parts.push("Ready");
  if (node.spec?.unschedulable) parts.push("cordoned");
  return { text: parts.join(", "), bad };
}

export function useNodeMetrics(): Map<string, any> {
  const { value } = usePoll("/apis/metrics.k8s.io/v1beta1/nodes", 15);
  return new Map((value?.items ?? []).map((m: any) => [m.metadata.name, m.usage]));
}

export function NodeCard({ node, pods, usage, now }: { node: KubeObject; pods: KubeObject[]; usage?: any; now: number }) {
  const state = nodeState(node);
  return (
    <article class={"card " + (state.bad ? "bad" : "")}>
      <h3><a href={link("node", node.metadata.name)}>{node.metadata.name}</a></h3>
      <p class={"state " + (state.bad ? "bad" : "good")}>{state.text}{state.bad && condition(node, "Ready")?.status !== "True" &&
        <> for <Since time={condition(node, "Ready")?.lastTransitionTime} now={now} /></>}</p>
      <NodeBars node={node} pods={pods} usage={usage} />
    </article>
  );
}

function NodeBars({ node, pods, usage }: { node: KubeObject; pods: KubeObject[]; usage?: any }) {
  const capacity = node.status?.allocatable ?? node.status?.capacity ?? {};
  const running = pods.filter(active);
  const sum = (name: string) => running.reduce((n, p) => n + requested(p, name, quantity), 0);
  return (
    <>
      <Bar label="CPU" capacity={quantity(capacity.cpu)} requests={sum("cpu")} use={usage && quantity(usage.cpu)} format={cores} />
      <Bar label="Memory" capacity={quantity(capacity.memory)} requests={sum("memory")} use={usage && quantity(usage.memory)} format={bytes} />
      <Bar label="Pods" capacity={quantity(capacity.pods)} requests={running.length} format={String} count />
    </>
  );
}

// podsByNode groups the pods of a list.
export function podsByNode(list: List): Map<string, KubeObject[]> {
  const out = new Map<string, KubeObject[]>();
  for (const { object } of list.rows.values()) {
    const node = object.spec?.nodeName;
    if (node) out.set(node, [...(out.get(node) ?? []), object]);
  }
  return out;
}

export function NodesView() {
  const nodes = useList("/api/v1/nodes");
  const pods = useList("/api/v1/pods");
  const usage = useNodeMetrics();
  const now = useNow();
  const grouped = podsByNode(pods);
  return (
    <section>
      <header class="title"><h1>Nodes</h1><Live list={nodes} /></header>
      <Problem error={nodes.error} what="list nodes" />
      <div class="cards">{[...nodes.rows.values()].map(({ object }) =>
        <NodeCard key={object.metadata.uid} node={object} pods={grouped.get(object.metadata.name) ?? []}
          usage={usage.get(object.metadata.name)} now={now} />)}</div>
    </section>
  );
}

export function NodeView({ name }: { name: string }) {
  const field = (f: string) => `includeObject=Object&fieldSelector=${encodeURIComponent(f)}`;
  const list = useList("/api/v1/nodes", field("metadata.name=" + name));
  const pods = useList("/api/v1/pods", field("spec.nodeName=" + name));
  const usage = useNodeMetrics();
  const now = useNow();
  const node = [...list.rows.values()].map((r) => r.object).pop();
  const events = usePoll(`/api/v1/events?fieldSelector=${encodeURIComponent(`involvedObject.kind=Node,involvedObject.name=${name}`)}`);
  if (!node) {
    return (
      <section><h1>Node {name}</h1><Problem error={list.error} what={`read the node ${name}`} />
        {list.loaded && !list.error && <p class="note">There is no node {name}.</p>}</section>
    );
  }
  const path = objectPath("/api/v1", "nodes", undefined, name);
  const cordoned = node.spec?.unschedulable === true;
  const info = node.status?.nodeInfo ?? {};
  const state = nodeState(node);
  const images: any[] = [...(node.status?.images ?? [])].sort((a, b) => b.sizeBytes - a.sizeBytes);
  const verb = cordoned ? "uncordon" : "cordon";
  return (
    <section>
      <header class="title">
        <h1>Node {name}</h1><Live list={list} />
        <div class="buttons"><ActionButton action={{
          label: cordoned ? "Uncordon" : "Cordon", access: { verb: "patch", resource: "nodes", name },
          command: `kubectl ${verb} ${quote(name)}`,
          form: <p>{cordoned ? "New pods can be scheduled to the node again." : "No new pods are scheduled to the node. Its pods stay."}</p>,
          run: () => write("PATCH", path, { spec: { unschedulable: cordoned ? null : true } }, mergePatch),
        }} /></div>
      </header>
      <div class={"why " + (state.bad ? "bad" : "good")}><p class="why-summary">{state.text}.</p>
        <NodeBars node={node} pods={[...pods.rows.values()].map((r) => r.object)} usage={usage.get(name)} /></div>
      <Facts of={[
        ["Addresses", (node.status?.addresses ?? []).map((a: any) => `${a.address} (${a.type})`).join(", ")],
        ["Agent", plain(info.kubeletVersion ?? "")], ["Runtime", plain(info.containerRuntimeVersion ?? "")],
        ["System", plain([info.osImage, info.kernelVersion, info.architecture].filter(Boolean).join(", "))],
        ["Pod CIDRs", (node.spec?.podCIDRs ?? []).join(", ")],
        ["Taints", (node.spec?.taints ?? []).map((t: any) => `${t.key}${t.value ? "=" + t.value : ""}:${t.effect}`).join(", ")],
        ["Joined", <Since time={node.metadata.creationTimestamp} now={now} />], ["Labels", <Labels of={node.metadata.labels} />],
      ]} />
      <h2>Conditions</h2>
      <Conditions of={node.status?.conditions} now={now} />
      <h2>Pods</h2>
      <Problem error={pods.error} what="list pods" />
      <PodTable list={pods} rows={[...pods.rows.values()]} allNamespaces label="Pods of the node" />
      <h2>Events</h2>
      {events.error ? <Problem error={events.error} what="read events" /> : <Events of={events.value?.items ?? []} now={now} />}
      <h2>Images</h2>
      {images.length === 0 ? <p class="note">The node reports no images.</p> : (
        <div class="scroll"><table><thead><tr><th>Image</th><th>Size</th></tr></thead>
          <tbody>{images.map((i, n) => <tr key={n}><td class="wrap">{plain((i.names ?? []).slice(-1).join())}</td><td>{bytes(i.sizeBytes)}</td></tr>)}</tbody>
        </table></div>)}
    </section>
  );
}
