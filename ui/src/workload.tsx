// One Deployment, StatefulSet or DaemonSet: rollout, revisions with their differences, pods, and actions.
import { useMemo, useState } from "preact/hooks";
import { jsonPatch, mergePatch, strategicPatch, write, type KubeObject } from "./api";
import { ActionButton, quote } from "./actions";
import { Conditions, Events, Facts, Labels, Live, PodTable, Problem, Since, useNow } from "./components";
import { diff, plain, yaml } from "./format";
import { owner, objectPath, rollout, selectorText, workloadKinds } from "./model";
import { Manifest } from "./pod";
import { useList, usePoll } from "./watch";

const revisionAnnotation = "deployment.kubernetes.io/revision";

interface Revision {
  number: number;
  name: string;
  created?: string;
  template: any;
  replicas?: number;
}

export function WorkloadView({ kind, namespace, name }: { kind: string; namespace: string; name: string }) {
  const type = workloadKinds.find((k) => k.kind === kind) ?? workloadKinds[0]!;
  const list = useList(objectPath("/apis/apps/v1", type.resource, namespace),
    `includeObject=Object&fieldSelector=${encodeURIComponent("metadata.name=" + name)}`);
  const found = [...list.rows.values()].map((r) => r.object).pop();
  const now = useNow();
  if (!found) {
    return (
      <section>
        <h1>{kind} {name}</h1>
        <Problem error={list.error} what={`read the ${kind} ${namespace}/${name}`} />
        {list.loaded && !list.error && <p class="note">There is no {kind} {name} in the namespace {namespace}.</p>}
      </section>
    );
  }
  const object = { ...found, kind: type.kind };
  const path = objectPath("/apis/apps/v1", type.resource, namespace, name);
  const progress = rollout(object);
  const target = `${type.short}/${quote(name)} -n ${quote(namespace)}`;
  const access = { verb: "patch", group: "apps", resource: type.resource, namespace, name };
  return (
    <section>
      <header class="title">
        <h1>{kind} {name}</h1>
        <Live list={list} />
        <div class="buttons">
          {kind !== "DaemonSet" && <Scale object={object} path={path} target={target} access={access} />}
          <ActionButton action={{
            label: "Restart", access, command: `kubectl rollout restart ${target}`,
            form: <p>All pods are replaced, according to the update strategy.</p>,
            run: () => write("PATCH", path, { spec: { template: { metadata: { annotations: {
              "kubectl.kubernetes.io/restartedAt": new Date().toISOString().replace(/\.\d+Z$/, "Z") } } } } }, strategicPatch),
          }} />
        </div>
      </header>
      <div class={"why " + (progress.done ? "good" : "")}>
        <p class="why-summary">Rollout: {progress.text}.</p>
        <progress aria-label="Ready pods" max={Math.max(progress.want, 1)} value={progress.want === 0 ? 1 : progress.ready} />{" "}
        {progress.ready} of {progress.want} ready
      </div>
      <Facts of={[
        ["Namespace", namespace], ["Selector", plain(selectorText(object.spec?.selector))],
        ["Strategy", object.spec?.strategy?.type ?? object.spec?.updateStrategy?.type],
        ["Created", <Since time={object.metadata.creationTimestamp} now={now} />], ["Labels", <Labels of={object.metadata.labels} />],
      ]} />
      <WorkloadPods object={object} />
      <h2>Revisions</h2>
      {kind === "Deployment" ? <DeploymentRevisions object={object} path={path} target={target} access={access} now={now} />
        : <ControllerRevisions object={object} now={now} />}
      <h2>Conditions</h2>
      <Conditions of={object.status?.conditions} now={now} />
      <h2>Events</h2>
      <WorkloadEvents object={object} now={now} />
      <details><summary>YAML</summary><Manifest of={object} /></details>
    </section>
  );
}

type Part = { object: KubeObject; path: string; target: string; access: any };

function Scale({ object, path, target, access }: Part) {
  const current: number = object.spec?.replicas ?? 1;
  const [text, setText] = useState<string>();
  const replicas = Number(text ?? current);
  return (
    <ActionButton action={{
      label: "Scale", access: { ...access, subresource: "scale" }, command: `kubectl scale ${target} --replicas=${replicas}`,
      form: <label>Replicas <input type="number" min={0} max={100000} step={1} required value={text ?? String(current)}
        onInput={(e) => setText(e.currentTarget.value)} /></label>,
      run: async () => {
        await write("PATCH", `${path}/scale`, { spec: { replicas } }, mergePatch);
        setText(undefined);
      },
    }} />
  );
}

function WorkloadPods({ object }: { object: KubeObject }) {
  const selector = selectorText(object.spec?.selector);
  const list = useList(objectPath("/api/v1", "pods", object.metadata.namespace),
    `includeObject=Object&labelSelector=${encodeURIComponent(selector)}`);
  const rows = [...list.rows.values()];
  const byNode = new Map<string, number>();
  for (const r of rows) byNode.set(r.object.spec?.nodeName ?? "no node", (byNode.get(r.object.spec?.nodeName ?? "no node") ?? 0) + 1);
  return (
    <>
      <h2>Pods</h2>
      <p class="note">{rows.length === 0 ? "No pods." : [...byNode].map(([n, count]) => `${count} on ${n}`).join(", ")}</p>
      <Problem error={list.error} what="list pods" />
      {rows.length > 0 && <PodTable list={list} rows={rows} allNamespaces={false} label="Pods of the workload" />}
    </>
  );
}

function DeploymentRevisions({ object, path, target, access, now }: Part & { now: number }) {
  const selector = encodeURIComponent(selectorText(object.spec?.selector));
  const { value, error } = usePoll(
    `${objectPath("/apis/apps/v1", "replicasets", object.metadata.namespace)}?labelSelector=${selector}`, 10,
    object.metadata.resourceVersion);
  if (!value) return error ? <Problem error={error} what="list ReplicaSets" /> : <p class="note">Loading.</p>;
  const revisions = (value.items as KubeObject[]).filter((rs) => owner(rs)?.uid === object.metadata.uid).map((rs): Revision => ({
    number: Number(rs.metadata.annotations?.[revisionAnnotation] ?? 0), name: rs.metadata.name,
    created: rs.metadata.creationTimestamp, template: withoutHash(rs.spec.template), replicas: rs.status?.replicas ?? 0,
  })).sort((a, b) => b.number - a.number);
  return <Revisions of={revisions} now={now} undo={(r) => (
    <ActionButton action={{
      label: "Undo to this", access, command: `kubectl rollout undo ${target} --to-revision=${r.number}`,
      form: <p>The pods get the template of revision {r.number} again.</p>,
      run: () => write("PATCH", path, [
        { op: "test", path: "/metadata/uid", value: object.metadata.uid },
        { op: "replace", path: "/spec/template", value: r.template },
      ], jsonPatch),
    }} />
  )} />;
}

function withoutHash(template: any) {
  const { "pod-template-hash": _, ...labels } = template.metadata?.labels ?? {};
  return { ...template, metadata: { ...template.metadata, labels } };
}

function ControllerRevisions({ object, now }: { object: KubeObject; now: number }) {
  const { value, error } = usePoll(objectPath("/apis/apps/v1", "controllerrevisions", object.metadata.namespace), 10,
    object.metadata.resourceVersion);
  if (!value) return error ? <Problem error={error} what="list revisions" /> : <p class="note">Loading.</p>;
  const revisions = (value.items as KubeObject[]).filter((r) => owner(r)?.uid === object.metadata.uid).map((r): Revision => ({
    number: r.revision, name: r.metadata.name, created: r.metadata.creationTimestamp, template: r.data?.spec?.template,
  })).sort((a, b) => b.number - a.number);
  return <Revisions of={revisions} now={now} />;
}

function Revisions({ of, now, undo }: { of: Revision[]; now: number; undo?: (r: Revision) => any }) {
  const [chosen, choose] = useState<number>();
  if (of.length === 0) return <p class="note">No revisions yet.</p>;
  const at = of.findIndex((r) => r.number === chosen);
  const revision = of[at >= 0 ? at : 0]!;
  const before = of[of.indexOf(revision) + 1];
  return (
    <>
      <div class="scroll"><table>
        <thead><tr><th>Revision</th><th>Object</th><th>Created</th><th>Pods</th><th>Images</th><th><span class="hidden">Actions</span></th></tr></thead>
        <tbody>{of.map((r, i) => (
          <tr key={r.name} class={r === revision ? "chosen" : ""}>
            <td>{r.number}{i === 0 && " (current)"}</td><td>{r.name}</td><td><Since time={r.created} now={now} /></td>
            <td>{r.replicas ?? ""}</td><td class="wrap">{plain((r.template?.spec?.containers ?? []).map((c: any) => c.image).join(", "))}</td>
            <td class="buttons"><button aria-pressed={r === revision} onClick={() => choose(r.number)}>Show changes</button>
              {i > 0 && undo?.(r)}</td>
          </tr>
        ))}</tbody>
      </table></div>
      {before ? <Diff before={before} after={revision} /> : <p class="note">Revision {revision.number} is the oldest revision in the history.</p>}
    </>
  );
}

function Diff({ before, after }: { before: Revision; after: Revision }) {
  const a = yaml(before.template);
  const b = yaml(after.template);
  const lines = useMemo(() => diff(a, b), [a, b]);
  if (!lines) return <p class="note">Revisions {before.number} and {after.number} are too large to compare.</p>;
  const near = lines.map((_, i) => lines.slice(Math.max(i - 3, 0), i + 4).some((l) => l.mark !== " "));
  return (
    <figure>
      <figcaption>Changes from revision {before.number} to {after.number}</figcaption>
      <pre class="diff" tabIndex={0}>{lines.map((l, i) => near[i]
        ? <span key={i} class={l.mark === "+" ? "added" : l.mark === "-" ? "removed" : ""}>{`${l.mark} ${plain(l.text)}`}</span>
        : near[i - 1] ? <span key={i} class="dim">{"  …"}</span> : null)}</pre>
    </figure>
  );
}

function WorkloadEvents({ object, now }: { object: KubeObject; now: number }) {
  const selector = encodeURIComponent(`involvedObject.uid=${object.metadata.uid}`);
  const { value, error } = usePoll(
    `${objectPath("/api/v1", "events", object.metadata.namespace)}?fieldSelector=${selector}`, 10, object.metadata.resourceVersion);
  if (error) return <Problem error={error} what="read events" />;
  return value ? <Events of={value.items} now={now} /> : <p class="note">Loading.</p>;
}
