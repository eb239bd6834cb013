// Services, and one Service with its endpoints.
import { Facts, Labels, Live, Problem, Since, chooseNamespace, link, objectLink, useNow } from "./components";
import { plain } from "./format";
import { objectPath, selectorText } from "./model";
import { Manifest } from "./pod";
import { useList, usePoll } from "./watch";

export function ServicesView({ namespace }: { namespace: string }) {
  const list = useList(objectPath("/api/v1", "services", namespace));
  const now = useNow();
  const rows = [...list.rows.values()].sort((a, b) => (a.object.metadata.namespace! + "/" + a.object.metadata.name)
    .localeCompare(b.object.metadata.namespace! + "/" + b.object.metadata.name));
  return (
    <section>
      <header class="title"><h1>Services</h1><Live list={list} /></header>
      <Problem error={list.error} what={namespace ? `list Services in ${namespace}` : "list Services of all namespaces"} hint={namespace ? "" : chooseNamespace} />
      <div class="scroll"><table>
        <thead><tr>{!namespace && <th>Namespace</th>}<th>Name</th><th>Type</th><th>Addresses</th><th>Ports</th><th>Age</th></tr></thead>
        <tbody>{rows.map(({ object: s }) => (
          <tr key={s.metadata.uid}>{!namespace && <td>{s.metadata.namespace}</td>}
            <td><a href={link("service", s.metadata.namespace!, s.metadata.name)}>{s.metadata.name}</a></td><td>{s.spec?.type}</td>
            <td>{addresses(s)}</td><td>{ports(s)}</td><td><Since time={s.metadata.creationTimestamp} now={now} /></td></tr>
        ))}</tbody>
      </table></div>
    </section>
  );
}

function addresses(s: any): string {
  const outside = (s.status?.loadBalancer?.ingress ?? []).map((i: any) => i.ip ?? i.hostname);
  return [...(s.spec?.clusterIPs ?? []), ...outside, ...(s.spec?.externalIPs ?? []), s.spec?.externalName].filter(Boolean).join(", ");
}

function ports(s: any): string {
  return (s.spec?.ports ?? []).map((p: any) => `${p.name ? p.name + " " : ""}${p.port}${p.nodePort ? ":" + p.nodePort : ""}/${p.protocol}`).join(", ");
}

export function ServiceView({ namespace, name }: { namespace: string; name: string }) {
  const list = useList(objectPath("/api/v1", "services", namespace),
    `includeObject=Object&fieldSelector=${encodeURIComponent("metadata.name=" + name)}`);
  const now = useNow();
  const slices = usePoll(`${objectPath("/apis/discovery.k8s.io/v1", "endpointslices", namespace)}?labelSelector=` +
    encodeURIComponent("kubernetes.io/service-name=" + name), 5);
  const s = [...list.rows.values()].map((r) => r.object).pop();
  if (!s) {
    return (
      <section><h1>Service {name}</h1><Problem error={list.error} what={`read the Service ${namespace}/${name}`} />
        {list.loaded && !list.error && <p class="note">There is no Service {name} in the namespace {namespace}.</p>}</section>
    );
  }
  const endpoints = (slices.value?.items ?? []).flatMap((slice: any) => (slice.endpoints ?? []).map((e: any) => ({ ...e, slice })));
  const ready = endpoints.filter((e: any) => e.conditions?.ready !== false).length;
  const local = s.spec?.internalTrafficPolicy === "Local";
  return (
    <section>
      <header class="title"><h1>Service {name}</h1><Live list={list} /></header>
      {slices.value && <div class={"why " + (ready ? "good" : "bad")}><p class="why-summary">{ready
        ? `${ready} of ${endpoints.length} endpoints are ready.`
        : endpoints.length ? `None of the ${endpoints.length} endpoints is ready, so connections are refused.`
          : selectorText(s.spec?.selector) ? `No pod matches the selector ${plain(selectorText(s.spec.selector))}.` : "The Service has no endpoints."}</p></div>}
      <Facts of={[
        ["Namespace", namespace], ["Type", s.spec?.type], ["Addresses", addresses(s)], ["Ports", ports(s)],
        ["Selector", plain(selectorText(s.spec?.selector))],
        ["Used from inside", local ? "each node uses only its own endpoints" : "every node uses all ready endpoints"],
        ["Used from outside", s.spec?.externalTrafficPolicy === "Local" ? "each node uses only its own endpoints"
          : s.spec?.externalTrafficPolicy ? "every node uses all ready endpoints" : ""],
        ["Session affinity", s.spec?.sessionAffinity], ["Created", <Since time={s.metadata.creationTimestamp} now={now} />],
        ["Labels", <Labels of={s.metadata.labels} />],
      ]} />
      <h2>Endpoints</h2>
      <Problem error={slices.error} what="list EndpointSlices" />
      {endpoints.length > 0 && <div class="scroll"><table>
        <thead><tr><th>Address</th><th>Ports</th><th>State</th><th>Pod</th><th>Node</th></tr></thead>
        <tbody>{endpoints.map((e: any) => (
          <tr key={e.addresses?.join() + e.slice.metadata.uid} class={e.conditions?.ready === false ? "bad" : ""}>
            <td>{e.addresses?.join(", ")}</td>
            <td>{(e.slice.ports ?? []).map((p: any) => `${p.port}/${p.protocol}`).join(", ")}</td>
            <td>{e.conditions?.ready !== false ? "ready" : e.conditions?.serving ? "terminating, serves" : "not ready"}</td>
            <td>{e.targetRef && objectLink(e.targetRef)}</td>
            <td>{e.nodeName && <a href={link("node", e.nodeName)}>{e.nodeName}</a>}</td></tr>
        ))}</tbody>
      </table></div>}
      <details><summary>YAML</summary><Manifest of={s} /></details>
    </section>
  );
}
