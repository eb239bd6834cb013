package control

import (
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"

	"github.com/google/uuid"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	apimachineryversion "k8s.io/apimachinery/pkg/version"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/server/filters"
	"k8s.io/apiserver/pkg/util/compatibility"
	restclient "k8s.io/client-go/rest"
	basecompatibility "k8s.io/component-base/compatibility"
)

// certificateNames returns the DNS names and IP addresses for the server certificate: those of this
// host, the Service default/kubernetes, the advertised address, and the configured TLSSANs.
func certificateNames(c *Config, advertised netip.Addr) (names []string, addresses []net.IP) {
	names = []string{
		"localhost",
		"kubernetes",
		"kubernetes.default",
		"kubernetes.default.svc",
		"kubernetes.default.svc.cluster.local",
	}
	if host, err := os.Hostname(); err == nil && !slices.Contains(names, host) {
		names = append(names, host)
	}
	addresses = []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback}
	add := func(ip net.IP) {
		if !slices.ContainsFunc(addresses, ip.Equal) {
			addresses = append(addresses, ip)
		}
	}
	if all, err := net.InterfaceAddrs(); err == nil {
		for _, a := range all {
			if n, ok := a.(*net.IPNet); ok && !n.IP.IsLinkLocalUnicast() {
				add(n.IP)
			}
		}
	}
	if advertised.IsValid() {
		add(advertised.AsSlice())
	}
	add(c.services().KubernetesServiceIP().AsSlice())
	for _, name := range c.TLSSANs {
		if ip := net.ParseIP(name); ip != nil {
			add(ip)
		} else if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names, addresses
}

// cipherSuites returns the suites of TLS 1.2 with forward secrecy and authenticated encryption. Go's default also has
// suites in CBC mode. The suites of TLS 1.3 are always enabled.
func cipherSuites() []uint16 {
	return []uint16{
		tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
		tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384, tls.TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
		tls.TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256, tls.TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
	}
}

// loopback returns the client configuration of the server's own controllers: system:masters, with a
// token that is never stored.
func (s *Server) loopback() (*restclient.Config, error) {
	host, port, err := net.SplitHostPort(s.listener.Addr().String())
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	if ip := net.ParseIP(host); ip == nil || ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	return &restclient.Config{
		Host:            "https://" + net.JoinHostPort(host, port),
		BearerToken:     uuid.NewString(),
		TLSClientConfig: restclient.TLSClientConfig{CAData: s.Authority.PEM(), ServerName: "localhost"},
		ContentConfig: restclient.ContentConfig{
			ContentType:        runtime.ContentTypeProtobuf,
			AcceptContentTypes: runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON,
		},
		QPS:       -1,
		UserAgent: "berth-control/" + s.Version,
		// Otherwise the server would compress each event of a streaming list and each long list for itself.
		DisableCompression: true,
	}, nil
}

// withoutManagedFields removes the managed fields of cached objects. Controllers do not need them.
func withoutManagedFields(obj any) (any, error) {
	if m, err := meta.Accessor(obj); err == nil {
		m.SetManagedFields(nil)
	}
	return obj, nil
}

// longRunning reports whether a request has no timeout.
func longRunning(r *http.Request, info *apirequest.RequestInfo) bool {
	return filters.BasicLongRunningRequestCheck(
		sets.NewString("watch", "proxy"), sets.NewString("attach", "exec", "proxy", "log", "portforward"))(r, info)
}

// version is the Kubernetes version of the served API with the version of berth.
type version struct {
	basecompatibility.EffectiveVersion
	berth string
}

// kubernetesPatch is the patch version of the k8s.io libraries.
const kubernetesPatch = ".2"

func effectiveVersion(berth string) basecompatibility.EffectiveVersion {
	return version{compatibility.DefaultBuildEffectiveVersion(), berth}
}

// Info returns the response to /version.
func (v version) Info() *apimachineryversion.Info {
	info := v.EffectiveVersion.Info()
	info.GitVersion = "v" + info.Major + "." + info.Minor + kubernetesPatch + "+berth"
	info.GitCommit, info.BuildDate, info.GitTreeState = v.berth, "", ""
	return info
}
