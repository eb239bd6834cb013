package nodeconfig

import (
	"cmp"
	"crypto/tls"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"
)

func (l *loader) listen(addrField, portField, addr string, port int64, least int64) ListenAddress {
	out := ListenAddress{Port: l.number(portField, port, least, 65535)}
	a, err := netip.ParseAddr(addr)
	if err != nil {
		l.complain(addrField, "%q is not an IP address", addr)
	}
	out.Address = a
	return out
}

func (l *loader) server(c *Config) {
	k := &l.kubelet
	c.Healthz = l.listen("healthzBindAddress", "healthzPort", k.HealthzBindAddress, int64(*k.HealthzPort), 0)
	c.Server = Server{
		ListenAddress:     l.listen("address", "port", k.Address, int64(k.Port), 1),
		Enabled:           *k.EnableServer,
		DebuggingHandlers: *k.EnableDebuggingHandlers,
		CertFile:          l.path("tlsCertFile", k.TLSCertFile),
		KeyFile:           l.path("tlsPrivateKeyFile", k.TLSPrivateKeyFile),
		MinVersion:        l.tlsVersion(k.TLSMinVersion),
		CipherSuites:      l.cipherSuites(k.TLSCipherSuites),
		CurvePreferences:  k.TLSCurvePreferences,
		ClientCAFile:      l.path("authentication.x509.clientCAFile", k.Authentication.X509.ClientCAFile),
		Webhook:           *k.Authentication.Webhook.Enabled,
		WebhookTTL:        l.duration("authentication.webhook.cacheTTL", k.Authentication.Webhook.CacheTTL, 0),
		AuthorizedTTL: l.duration(
			"authorization.webhook.cacheAuthorizedTTL",
			k.Authorization.Webhook.CacheAuthorizedTTL,
			0,
		),
		UnauthorizedTTL: l.duration(
			"authorization.webhook.cacheUnauthorizedTTL",
			k.Authorization.Webhook.CacheUnauthorizedTTL,
			0,
		),
		ServerTLSBootstrap: k.ServerTLSBootstrap,
		StreamIdleTimeout: l.duration(
			"streamingConnectionIdleTimeout",
			k.StreamingConnectionIdleTimeout,
			time.Second,
		),
		SystemLogHandler:   *k.EnableSystemLogHandler,
		SystemLogQuery:     *k.EnableSystemLogQuery,
		Profiling:          *k.EnableProfilingHandler,
		ContentionProfiles: k.EnableContentionProfiling,
		DebugFlags:         *k.EnableDebugFlagsHandler,
	}
	l.oneOf(
		"authorization.mode",
		string(k.Authorization.Mode),
		string(
			kubeletv1beta1.KubeletAuthorizationModeAlwaysAllow,
		),
		string(kubeletv1beta1.KubeletAuthorizationModeWebhook),
	)
	c.Server.AlwaysAllow = k.Authorization.Mode == kubeletv1beta1.KubeletAuthorizationModeAlwaysAllow
	if (k.TLSCertFile == "") != (k.TLSPrivateKeyFile == "") {
		l.complain("tlsCertFile", "must be set together with tlsPrivateKeyFile")
	}
	if k.TLSCertFile != "" && k.ServerTLSBootstrap {
		l.complain("serverTLSBootstrap", "conflicts with tlsCertFile: a certificate is either configured or requested")
	}
	if c.Healthz.Port != 0 && c.Healthz.Port == c.Server.Port && c.Server.Enabled {
		l.complain("healthzPort", "%d is already the port of the server", c.Healthz.Port)
	}
}

func (l *loader) tlsVersion(s string) uint16 {
	switch s {
	case "":
		return 0
	case "VersionTLS12":
		return tls.VersionTLS12
	case "VersionTLS13":
		return tls.VersionTLS13
	case "VersionTLS10", "VersionTLS11":
		l.complain("tlsMinVersion", "%s is insecure; the minimum is VersionTLS12", s)
	default:
		l.complain("tlsMinVersion", "%q must be VersionTLS12 or VersionTLS13", s)
	}
	return 0
}

func (l *loader) cipherSuites(names []string) []uint16 {
	var ids []uint16
	for i, name := range names {
		field := fmt.Sprintf("tlsCipherSuites[%d]", i)
		named := func(c *tls.CipherSuite) bool { return c.Name == name }
		if j := slices.IndexFunc(tls.CipherSuites(), named); j >= 0 {
			ids = append(ids, tls.CipherSuites()[j].ID)
		} else if slices.ContainsFunc(tls.InsecureCipherSuites(), named) {
			l.complain(field, "%s is insecure", name)
		} else {
			l.complain(field, "%q is not a known cipher suite", name)
		}
	}
	return ids
}

func (l *loader) node(c *Config) {
	k := &l.kubelet
	c.Node = Node{
		Register:              *k.RegisterNode,
		Taints:                k.RegisterWithTaints,
		ProviderID:            k.ProviderID,
		StatusUpdateFrequency: l.duration("nodeStatusUpdateFrequency", k.NodeStatusUpdateFrequency, time.Second),
		StatusReportFrequency: l.duration("nodeStatusReportFrequency", k.NodeStatusReportFrequency, time.Second),
		StatusMaxImages:       l.number("nodeStatusMaxImages", int64(*k.NodeStatusMaxImages), -1, maxInt32),
		LeaseDuration: time.Duration(
			l.number("nodeLeaseDurationSeconds", int64(k.NodeLeaseDurationSeconds), 1, 3600),
		) * time.Second,
		RotateCertificates: k.RotateCertificates || !l.written("rotateCertificates"),
		APIQPS:             l.number("kubeAPIQPS", int64(*k.KubeAPIQPS), 0, maxInt32),
		APIBurst:           l.number("kubeAPIBurst", int64(k.KubeAPIBurst), 0, maxInt32),
		EventQPS:           l.number("eventRecordQPS", int64(*k.EventRecordQPS), 0, maxInt32),
		EventBurst:         l.number("eventBurst", int64(k.EventBurst), 0, maxInt32),
	}
	for i, t := range k.RegisterWithTaints {
		l.taint(fmt.Sprintf("registerWithTaints[%d]", i), t)
	}
}

// written reports whether the file contains a field.
func (l *loader) written(field string) bool {
	_, is := lookup(l.raw, strings.Split(field, "."))
	return is
}

func (l *loader) taint(field string, t corev1.Taint) {
	if flag, ok := l.fromFlag["registerWithTaints"]; ok {
		l.fromFlag[field] = flag
	}
	for _, m := range validation.IsQualifiedName(t.Key) {
		l.complain(field, "key %q: %s", t.Key, m)
	}
	for _, m := range validation.IsValidLabelValue(t.Value) {
		l.complain(field, "value %q: %s", t.Value, m)
	}
	switch t.Effect {
	case corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule, corev1.TaintEffectNoExecute:
	default:
		l.complain(field, "effect %q must be NoSchedule, PreferNoSchedule or NoExecute", t.Effect)
	}
}

func (l *loader) shutdown(c *Config) {
	k := &l.kubelet
	c.Shutdown = Shutdown{
		GracePeriod:         l.duration("shutdownGracePeriod", k.ShutdownGracePeriod, 0),
		CriticalGracePeriod: l.duration("shutdownGracePeriodCriticalPods", k.ShutdownGracePeriodCriticalPods, 0),
	}
	if c.Shutdown.CriticalGracePeriod > c.Shutdown.GracePeriod {
		l.complain("shutdownGracePeriodCriticalPods", "%s must not be more than shutdownGracePeriod, %s",
			c.Shutdown.CriticalGracePeriod, c.Shutdown.GracePeriod)
	}
	if len(k.ShutdownGracePeriodByPodPriority) > 0 && c.Shutdown.GracePeriod > 0 {
		l.complain("shutdownGracePeriodByPodPriority", "conflicts with shutdownGracePeriod")
	}
	seen := map[int32]bool{}
	for i, p := range k.ShutdownGracePeriodByPodPriority {
		field := fmt.Sprintf("shutdownGracePeriodByPodPriority[%d]", i)
		if seen[p.Priority] {
			l.complain(field+".priority", "%d is duplicated", p.Priority)
		}
		seen[p.Priority] = true
		if p.ShutdownGracePeriodSeconds < 0 || p.ShutdownGracePeriodSeconds > maxInt32 {
			l.complain(
				field+".shutdownGracePeriodSeconds",
				"%d must not be negative, or more than %d",
				p.ShutdownGracePeriodSeconds,
				maxInt32,
			)
			continue
		}
		c.Shutdown.ByPriority = append(c.Shutdown.ByPriority,
			PriorityGrace{p.Priority, time.Duration(p.ShutdownGracePeriodSeconds) * time.Second})
	}
	slices.SortFunc(c.Shutdown.ByPriority, func(a, b PriorityGrace) int { return cmp.Compare(a.Priority, b.Priority) })
}
