package cis

import (
	"crypto/tls"
	"io/fs"
	"path/filepath"
	"slices"
	"time"

	"berth/internal/cis"
	"berth/nodeapi/server"
)

const (
	ownerOnly fs.FileMode = 0o600
	worldRead fs.FileMode = 0o644

	noProxy      = "there is no kube-proxy: the agent routes Services"
	noServer     = "enableServer is false: the agent has no port"
	noClients    = "the node is standalone and has no authentication.x509.clientCAFile: the port is not opened"
	noKubeconfig = "the node is standalone: there is no kubeconfig"
	noUnit       = "there is no unit of the agent"

	// defaultEventQPS is the default of eventRecordQPS.
	defaultEventQPS = 50
)

// check returns the result of a control.
type check = func(*Facts) cis.Finding

// Controls returns the controls that Check checks: chapter 4, and those of chapter 1 about files on nodes.
func Controls() (out []cis.Control) {
	for _, c := range cis.Controls("1", "4") {
		if _, found := checks[c.ID]; found {
			out = append(out, c)
		}
	}
	return out
}

// Check checks all controls.
func Check(f *Facts) cis.Report { return cis.Check(Controls(), checks, f) }

var checks = map[string]check{
	"1.1.9":  func(f *Facts) cis.Finding { return f.cniFiles(cniModes(f.CNI)) },
	"1.1.10": func(f *Facts) cis.Finding { return f.cniFiles(cis.CheckOwners(f.CNI, 0)) },
	"4.1.1":  unitModes,
	"4.1.2":  unitOwners,
	"4.1.3":  func(*Facts) cis.Finding { return cis.Absent(noProxy) },
	"4.1.4":  func(*Facts) cis.Finding { return cis.Absent(noProxy) },
	"4.1.5":  func(f *Facts) cis.Finding { return f.kubeconfigs(cis.CheckModes(f.Kubeconfigs, ownerOnly)) },
	"4.1.6":  func(f *Facts) cis.Finding { return f.kubeconfigs(cis.CheckOwners(f.Kubeconfigs, 0)) },
	"4.1.7":  func(f *Facts) cis.Finding { return optionalFile(f.ClientCA, worldRead, noClientCA) },
	"4.1.8":  func(f *Facts) cis.Finding { return optionalOwner(f.ClientCA, noClientCA) },
	"4.1.9":  func(f *Facts) cis.Finding { return optionalFile(f.ConfigFile, ownerOnly, noConfig) },
	"4.1.10": func(f *Facts) cis.Finding { return optionalOwner(f.ConfigFile, noConfig) },
	"4.2.1":  ofServer(anonymous),
	"4.2.2":  ofServer(authorization),
	"4.2.3":  ofServer(clientCA),
	"4.2.4":  readOnlyPort,
	"4.2.5":  ofServer(idleTimeout),
	"4.2.6":  func(*Facts) cis.Finding { return cis.Absent("the agent creates no iptables chains") },
	"4.2.7":  nodeName,
	"4.2.8":  events,
	"4.2.9":  ofServer(servingCertificate),
	"4.2.10": rotation,
	"4.2.11": ofServer(servingRotation),
	"4.2.12": ofServer(ciphers),
	"4.2.13": processes,
	"4.2.14": seccomp,
	"4.3.1":  func(*Facts) cis.Finding { return cis.Absent(noProxy) },
}

const (
	noClientCA = "authentication.x509.clientCAFile is not set"
	noConfig   = "the settings are flags"
)

func (f *Facts) cniFiles(found cis.Finding) cis.Finding {
	if f.CNIErr != nil {
		return cis.Unknown("%v", f.CNIErr)
	}
	if len(f.CNI) == 0 {
		return cis.Absent("%s contains no files", f.Config.Network.CNIConfDir)
	}
	return found
}

// cniModes checks the modes of files of the network. The plugin host-local creates empty lock files with more
// permissions.
func cniModes(files []cis.File) cis.Finding {
	var locks, others []cis.File
	for _, file := range files {
		if filepath.Base(file.Path) == "lock" && file.Size == 0 {
			locks = append(locks, file)
		} else {
			others = append(others, file)
		}
	}
	ofLocks := cis.CheckModes(locks, ownerOnly)
	if ofLocks.Verdict != cis.Fail {
		return cis.CheckModes(files, ownerOnly)
	}
	if found := cis.CheckModes(others, ownerOnly); found.Verdict != cis.Pass && len(others) > 0 {
		return found
	}
	return cis.Deviation("%s: the plugin host-local creates these lock files, which are empty; %d other files have at "+
		"most mode 0600", ofLocks.Evidence, len(others))
}

func unitModes(f *Facts) cis.Finding {
	if len(f.Units) == 0 {
		return cis.Absent(noUnit)
	}
	return cis.UnitModes(f.Units)
}

func unitOwners(f *Facts) cis.Finding {
	if len(f.Units) == 0 {
		return cis.Absent(noUnit)
	}
	return cis.CheckOwners(f.Units, 0)
}

func (f *Facts) kubeconfigs(found cis.Finding) cis.Finding {
	if len(f.Kubeconfigs) == 0 {
		return cis.Absent(noKubeconfig)
	}
	return found
}

func optionalFile(file cis.File, most fs.FileMode, without string) cis.Finding {
	if file.Path == "" {
		return cis.Absent("%s", without)
	}
	return cis.CheckModes([]cis.File{file}, most)
}

func optionalOwner(file cis.File, without string) cis.Finding {
	if file.Path == "" {
		return cis.Absent("%s", without)
	}
	return cis.CheckOwners([]cis.File{file}, 0)
}

// ofServer returns a check of the HTTP API of the node, if its port is open.
func ofServer(one check) check {
	return func(f *Facts) cis.Finding {
		switch {
		case !f.Config.Server.Enabled:
			return cis.Absent(noServer)
		case f.Config.Standalone() && f.Config.Server.ClientCAFile == "":
			return cis.Absent(noClients)
		}
		return one(f)
	}
}

func anonymous(f *Facts) cis.Finding {
	if enabled := f.Config.Kubelet.Authentication.Anonymous.Enabled; enabled != nil && *enabled {
		return cis.Failed("set authentication.anonymous.enabled: false", "authentication.anonymous.enabled: true")
	}
	return cis.Passed("authentication.anonymous.enabled: false, the only accepted value")
}

func authorization(f *Facts) cis.Finding {
	if f.Config.Server.AlwaysAllow {
		return cis.Failed("set authorization.mode: Webhook", "authorization.mode: AlwaysAllow")
	}
	return cis.Passed("authorization.mode: %s", f.Config.Kubelet.Authorization.Mode)
}

func clientCA(f *Facts) cis.Finding {
	if f.ClientCA.Path == "" {
		return cis.Failed("set authentication.x509.clientCAFile to the CA of the API server",
			"authentication.x509.clientCAFile is not set")
	}
	if f.ClientCA.Err != nil {
		return cis.Failed("create the file", "authentication.x509.clientCAFile: %v", f.ClientCA.Err)
	}
	return cis.Passed("authentication.x509.clientCAFile: %s", f.ClientCA.Path)
}

func readOnlyPort(f *Facts) cis.Finding {
	if port := f.Config.Kubelet.ReadOnlyPort; port != 0 {
		return cis.Failed("remove readOnlyPort", "readOnlyPort: %d", port)
	}
	return cis.Passed("readOnlyPort: 0, the only accepted value")
}

func idleTimeout(f *Facts) cis.Finding {
	timeout := f.Config.Server.StreamIdleTimeout
	if timeout == 0 {
		return cis.Failed("set streamingConnectionIdleTimeout: 4h", "idle streams have no timeout")
	}
	return cis.Passed("streamingConnectionIdleTimeout: %s", timeout.Round(time.Second))
}

func nodeName(f *Facts) cis.Finding {
	if f.Config.NodeName != f.HostName {
		return cis.ToReview("that the name is intended: certificates and permissions of the node depend on it",
			"the node has the name %s, the host %s", f.Config.NodeName, f.HostName)
	}
	return cis.Passed("the node has the name of the host, %s", f.HostName)
}

func events(f *Facts) cis.Finding {
	switch qps := f.Config.Node.EventQPS; {
	case f.Config.Standalone():
		return cis.Absent("the node is standalone: events stay on the node")
	case qps == 0:
		return cis.Passed("eventRecordQPS: 0, no limit")
	case qps >= defaultEventQPS:
		return cis.Passed("eventRecordQPS: %d; events beyond the limit are delayed, not lost", qps)
	default:
		return cis.ToReview("whether events may be delayed", "eventRecordQPS: %d is less than the default of %d", qps,
			defaultEventQPS)
	}
}

func servingCertificate(f *Facts) cis.Finding {
	s := f.Config.Server
	switch {
	case s.CertFile != "":
		return cis.Passed("tlsCertFile: %s", s.CertFile)
	case s.ServerTLSBootstrap && !f.Config.Standalone():
		return cis.Passed("serverTLSBootstrap: true, the cluster signs the certificate")
	}
	return cis.Failed("set tlsCertFile and tlsPrivateKeyFile, or serverTLSBootstrap: true in a cluster",
		"the certificate is signed by the agent itself: clients cannot verify it")
}

func rotation(f *Facts) cis.Finding {
	switch {
	case f.Config.Standalone():
		return cis.Absent(noKubeconfig)
	case !f.Config.Node.RotateCertificates:
		return cis.Failed("remove rotateCertificates", "rotateCertificates: false")
	}
	return cis.Passed("rotateCertificates: true")
}

func servingRotation(f *Facts) cis.Finding {
	s := f.Config.Server
	switch {
	case s.CertFile != "":
		return cis.ToReview("what renews the file; the agent reads a new one at once", "tlsCertFile: %s", s.CertFile)
	case s.ServerTLSBootstrap && !f.Config.Standalone():
		return cis.Passed("serverTLSBootstrap: true, the agent renews the certificate")
	}
	return cis.ToReview("set serverTLSBootstrap: true in a cluster", "the certificate is signed by the agent itself")
}

func ciphers(f *Facts) cis.Finding {
	s := f.Config.Server
	if s.MinVersion >= tls.VersionTLS13 {
		return cis.Passed("tlsMinVersion: %s has only strong suites", tls.VersionName(s.MinVersion))
	}
	strong := server.StrongCipherSuites()
	if len(s.CipherSuites) == 0 {
		return cis.Passed("tlsCipherSuites is not set: TLS 1.2 with the %d suites that the benchmark recommends",
			len(strong))
	}
	var weak []string
	for _, id := range s.CipherSuites {
		suite := slices.IndexFunc(tls.CipherSuites(), func(c *tls.CipherSuite) bool { return c.ID == id })
		ofTLS12 := suite < 0 || slices.Contains(tls.CipherSuites()[suite].SupportedVersions, tls.VersionTLS12)
		if ofTLS12 && !slices.Contains(strong, id) {
			weak = append(weak, tls.CipherSuiteName(id))
		}
	}
	if len(weak) > 0 {
		return cis.Failed("remove them from tlsCipherSuites", "weak suites: %s", cis.List(weak))
	}
	return cis.Passed("tlsCipherSuites has %d strong suites", len(s.CipherSuites))
}

func processes(f *Facts) cis.Finding {
	if limit := f.Config.Pods.PidsLimit; limit > 0 {
		return cis.Passed("podPidsLimit: %d", limit)
	}
	return cis.ToReview("how many processes pods need, and set podPidsLimit",
		"podPidsLimit is not set, as in Kubernetes: a pod can use all process IDs of the host")
}

func seccomp(f *Facts) cis.Finding {
	if f.Config.Pods.SeccompDefault {
		return cis.Passed("seccompDefault: true")
	}
	return cis.ToReview("whether the pods of this node work with the seccomp profile RuntimeDefault, and set "+
		"seccompDefault: true", "seccompDefault: false, the default of Kubernetes")
}
