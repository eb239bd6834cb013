package nodeconfig

import (
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// override applies the flags that were set.
func (l *loader) override() {
	f := l.flags
	l.fromFlag = map[string]string{}
	text := func(flag, value, field string, into *string) {
		if f.given(flag, value != "") {
			*into = value
			l.fromFlag[field] = "--" + flag
		}
	}
	text("hostname-override", f.HostnameOverride, "nodeName", &l.berth.NodeName)
	text("root-dir", f.RootDir, "rootDir", &l.berth.RootDir)
	text("state-dir", f.StateDir, "stateDir", &l.berth.StateDir)
	text("kubeconfig", f.Kubeconfig, "kubeconfig", &l.berth.Kubeconfig)
	text("bootstrap-kubeconfig", f.BootstrapKubeconfig, "bootstrapKubeconfig", &l.berth.BootstrapKubeconfig)
	text("cert-dir", f.CertDir, "certDir", &l.berth.CertDir)
	text("socket", f.Socket, "socket", &l.berth.Socket)
	text("image-credential-provider-config", f.ImageCredentialProviderConfig, "imageCredentialProviderConfig",
		&l.berth.ImageCredentialProviderConfig)
	text("image-credential-provider-bin-dir", f.ImageCredentialProviderBinDir, "imageCredentialProviderBinDir",
		&l.berth.ImageCredentialProviderBinDir)
	text(
		"container-runtime-endpoint",
		f.RuntimeEndpoint,
		"containerRuntimeEndpoint",
		&l.kubelet.ContainerRuntimeEndpoint,
	)
	text("pod-manifest-path", f.PodManifestPath, "staticPodPath", &l.kubelet.StaticPodPath)
	if f.given("node-ip", f.NodeIP != "") {
		l.berth.NodeIPs = strings.Split(f.NodeIP, ",")
		l.fromFlag["nodeIPs"] = "--node-ip"
	}
	if f.given("node-labels", len(f.NodeLabels) > 0) {
		l.berth.NodeLabels = f.NodeLabels
		l.fromFlag["nodeLabels"] = "--node-labels"
	}
	if f.given("cni-pod-cidr", len(f.CNIPodCIDR) > 0) {
		l.berth.CNIPodCIDRs = f.CNIPodCIDR
		l.fromFlag["cniPodCIDRs"] = "--cni-pod-cidr"
	}
	if f.given("register-with-taints", len(f.RegisterWithTaints) > 0) {
		l.kubelet.RegisterWithTaints = l.taints(f.RegisterWithTaints)
		l.fromFlag["registerWithTaints"] = "--register-with-taints"
	}
	if f.given("v", f.Verbosity != 0) {
		if f.Verbosity < 0 || f.Verbosity > 10 {
			l.errs = append(l.errs, &Error{Field: "--v", Message: "must be from 0 to 10"})
			return
		}
		l.kubelet.Logging.Verbosity = logVerbosity(f.Verbosity)
	}
}

// taints parses key=value:Effect and key:Effect.
func (l *loader) taints(list []string) []corev1.Taint {
	var out []corev1.Taint
	for _, s := range list {
		i := strings.LastIndexByte(s, ':')
		if i < 0 {
			l.errs = append(
				l.errs,
				&Error{Field: "--register-with-taints", Message: "must be key=value:Effect or key:Effect"},
			)
			continue
		}
		key, value, _ := strings.Cut(s[:i], "=")
		out = append(out, corev1.Taint{Key: key, Value: value, Effect: corev1.TaintEffect(s[i+1:])})
	}
	return out
}

// resolve parses and validates all values.
func (l *loader) resolve() *Config {
	k, b := &l.kubelet, &l.berth
	c := &Config{
		Kubeconfig:          l.path("kubeconfig", b.Kubeconfig),
		BootstrapKubeconfig: l.path("bootstrapKubeconfig", b.BootstrapKubeconfig),
		CertDir:             l.path("certDir", b.CertDir),
		NodeLabels:          l.labels("nodeLabels", b.NodeLabels),
		NodeIPs:             l.nodeIPs(),
		NodeName:            l.nodeName(),
		RootDir:             l.path("rootDir", b.RootDir),
		StateDir:            l.path("stateDir", b.StateDir),
		Socket:              l.socket(),
		PodLogsDir:          l.path("podLogsDir", k.PodLogsDir),
		StaticPodPath:       l.path("staticPodPath", k.StaticPodPath),
		FileCheckFrequency:  l.duration("fileCheckFrequency", k.FileCheckFrequency, 100*time.Millisecond),
		RuntimeEndpoint:     l.endpoint("containerRuntimeEndpoint", k.ContainerRuntimeEndpoint),
		ImageEndpoint:       l.imageEndpoint(k.ContainerRuntimeEndpoint, k.ImageServiceEndpoint),
		LogFormat:           l.oneOf("logging.format", k.Logging.Format, "text", "json"),
		Verbosity:           int(k.Logging.Verbosity),
		StartPressure:       float64(l.number("startPressurePercent", int64(*b.StartPressurePercent), 0, 100)),
		MaxParallelStarts:   l.number("maxParallelStarts", int64(*b.MaxParallelStarts), 1, 1000),
	}
	c.DeadContainers = DeadContainers{
		MaxPerContainer: l.number("deadContainersKept", int64(*b.DeadContainersKept), 1, 1000),
		MinAge:          l.duration("deadContainerMinAge", b.DeadContainerMinAge, 0),
	}
	l.pods(c)
	l.images(c)
	l.logs(c)
	l.cgroups(c)
	l.network(c)
	l.server(c)
	l.node(c)
	l.reserved(c)
	l.eviction(c)
	l.shutdown(c)
	return c
}

func (l *loader) nodeName() string {
	name := l.berth.NodeName
	if name == "" {
		host, err := os.Hostname()
		if err != nil {
			l.complain("nodeName", "must be specified: %v", err)
			return ""
		}
		name = host
	}
	name = strings.ToLower(strings.TrimSpace(name))
	for _, m := range validation.IsDNS1123Subdomain(name) {
		l.complain("nodeName", "%q: %s", name, m)
	}
	return name
}

func (l *loader) nodeIPs() []netip.Addr {
	list := l.addresses("nodeIPs", l.berth.NodeIPs)
	if len(list) > 2 || len(list) == 2 && list[0].Is4() == list[1].Is4() {
		l.complain("nodeIPs", "must be one address, or two of different families")
	}
	for _, a := range list {
		if a.IsMulticast() {
			l.complain("nodeIPs", "%s is a multicast address", a)
		}
	}
	return list
}

func (l *loader) labels(field string, labels map[string]string) map[string]string {
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		for _, m := range validation.IsQualifiedName(key) {
			l.complain(field, "key %q: %s", key, m)
		}
		for _, m := range validation.IsValidLabelValue(labels[key]) {
			l.complain(field, "value of %q: %s", key, m)
		}
	}
	return labels
}

func (l *loader) addresses(field string, texts []string) []netip.Addr {
	var out []netip.Addr
	for _, s := range texts {
		a, err := netip.ParseAddr(strings.TrimSpace(s))
		if err != nil || a.Zone() != "" {
			l.complain(field, "%q is not an IP address", s)
			continue
		}
		out = append(out, a.Unmap())
	}
	return out
}

// prefixes parses pod CIDRs, at most one per family.
func (l *loader) prefixes(field string, texts []string) []netip.Prefix {
	var out []netip.Prefix
	for _, s := range texts {
		p, err := netip.ParsePrefix(strings.TrimSpace(s))
		if err != nil {
			l.complain(field, "%q is not a CIDR such as 10.85.0.0/16", s)
			continue
		}
		if p != p.Masked() {
			l.complain(field, "%s has host bits set; the CIDR is %s", p, p.Masked())
			continue
		}
		out = append(out, p)
	}
	if len(out) > 2 || len(out) == 2 && out[0].Addr().Is4() == out[1].Addr().Is4() {
		l.complain(field, "must be one CIDR, or two of different families")
	}
	return out
}

// path validates that a path is absolute. Relative paths would depend on the working directory of
// the agent.
func (l *loader) path(field, p string) string {
	if p == "" {
		return ""
	}
	if !filepath.IsAbs(p) {
		l.complain(field, "%q must be an absolute path", p)
	}
	return filepath.Clean(p)
}

func (l *loader) socket() string {
	p := l.path("socket", l.berth.Socket)
	if len(p) > 107 { // limit of the kernel
		l.complain("socket", "the path of a socket may have at most 107 bytes, and has %d", len(p))
	}
	return p
}

// endpoint parses unix:///path. A plain path is accepted too.
func (l *loader) endpoint(field, s string) string {
	path, isUnix := strings.CutPrefix(s, "unix://")
	if !isUnix && strings.Contains(s, "://") {
		l.complain(field, "%q must begin with unix://", s)
		return s
	}
	if !filepath.IsAbs(path) {
		l.complain(field, "%q must be unix:// and an absolute path", s)
		return s
	}
	return "unix://" + filepath.Clean(path)
}

// imageEndpoint does not repeat errors of an endpoint that is the same as that of the runtime.
func (l *loader) imageEndpoint(runtime, image string) string {
	before := len(l.errs)
	out := l.endpoint("imageServiceEndpoint", image)
	if image == runtime {
		l.errs = l.errs[:before]
	}
	return out
}

func (l *loader) number(field string, n, least, most int64) int {
	if n < least || n > most {
		l.complain(field, "%d must be from %d to %d", n, least, most)
	}
	return int(n)
}

func (l *loader) duration(field string, d metav1.Duration, least time.Duration) time.Duration {
	if d.Duration < least {
		if least == 0 {
			l.complain(field, "%s must not be negative", d.Duration)
		} else {
			l.complain(field, "%s must be at least %s", d.Duration, least)
		}
	}
	return d.Duration
}

func (l *loader) oneOf(field, value string, allowed ...string) string {
	if !slices.Contains(allowed, value) {
		l.complain(field, "%q must be one of %s", value, strings.Join(allowed, ", "))
	}
	return value
}
