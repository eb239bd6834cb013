package cis

import (
	"crypto/tls"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"

	"berth/internal/cis"
	"berth/internal/nodeconfig"
)

// joined returns the facts of a node in a cluster that meets all controls.
func joined() *Facts {
	off := false
	return &Facts{
		Config: &nodeconfig.Config{
			NodeName: "one", Kubeconfig: "/k",
			Server: nodeconfig.Server{Enabled: true, ClientCAFile: "/ca", ServerTLSBootstrap: true,
				StreamIdleTimeout: time.Hour},
			Node: nodeconfig.Node{RotateCertificates: true, EventQPS: 50},
			Pods: nodeconfig.Pods{PidsLimit: 100, SeccompDefault: true},
			Kubelet: &kubeletv1beta1.KubeletConfiguration{
				Authentication: kubeletv1beta1.KubeletAuthentication{
					Anonymous: kubeletv1beta1.KubeletAnonymousAuthentication{Enabled: &off}},
			},
		},
		HostName: "one", Units: []cis.File{{Path: "/u", Mode: 0o600}},
		ConfigFile: cis.File{Path: "/c", Mode: 0o600}, ClientCA: cis.File{Path: "/ca", Mode: 0o644},
		Kubeconfigs: []cis.File{{Path: "/k", Mode: 0o600}}, CNI: []cis.File{{Path: "/n", Mode: 0o600}},
	}
}

// TestChecks has, for each control, the verdict for a node that meets it and for one that does not.
func TestChecks(t *testing.T) {
	t.Parallel()
	open := func(f *cis.File) { f.Mode |= 0o022 }
	foreign := func(f *cis.File) { f.UID = 7 }
	rows := map[string]struct {
		good   cis.Verdict
		change func(*Facts) // nil: nothing changes the verdict
		bad    cis.Verdict
	}{
		"1.1.9":  {cis.Pass, func(f *Facts) { open(&f.CNI[0]) }, cis.Fail},
		"1.1.10": {cis.Pass, func(f *Facts) { foreign(&f.CNI[0]) }, cis.Fail},
		"4.1.1":  {cis.Accepted, func(f *Facts) { open(&f.Units[0]) }, cis.Fail},
		"4.1.2":  {cis.Pass, func(f *Facts) { foreign(&f.Units[0]) }, cis.Fail},
		"4.1.3":  {cis.NotApplicable, nil, ""},
		"4.1.4":  {cis.NotApplicable, nil, ""},
		"4.1.5":  {cis.Pass, func(f *Facts) { open(&f.Kubeconfigs[0]) }, cis.Fail},
		"4.1.6":  {cis.Pass, func(f *Facts) { foreign(&f.Kubeconfigs[0]) }, cis.Fail},
		"4.1.7":  {cis.Pass, func(f *Facts) { open(&f.ClientCA) }, cis.Fail},
		"4.1.8":  {cis.Pass, func(f *Facts) { foreign(&f.ClientCA) }, cis.Fail},
		"4.1.9":  {cis.Pass, func(f *Facts) { open(&f.ConfigFile) }, cis.Fail},
		"4.1.10": {cis.Pass, func(f *Facts) { foreign(&f.ConfigFile) }, cis.Fail},
		"4.2.1":  {cis.Pass, func(f *Facts) { *f.Config.Kubelet.Authentication.Anonymous.Enabled = true }, cis.Fail},
		"4.2.2":  {cis.Pass, func(f *Facts) { f.Config.Server.AlwaysAllow = true }, cis.Fail},
		"4.2.3":  {cis.Pass, func(f *Facts) { f.ClientCA = cis.File{} }, cis.Fail},
		"4.2.4":  {cis.Pass, func(f *Facts) { f.Config.Kubelet.ReadOnlyPort = 10255 }, cis.Fail},
		"4.2.5":  {cis.Pass, func(f *Facts) { f.Config.Server.StreamIdleTimeout = 0 }, cis.Fail},
		"4.2.6":  {cis.NotApplicable, nil, ""},
		"4.2.7":  {cis.Pass, func(f *Facts) { f.Config.NodeName = "two" }, cis.Manual},
		"4.2.8":  {cis.Pass, func(f *Facts) { f.Config.Node.EventQPS = 1 }, cis.Manual},
		"4.2.9":  {cis.Pass, func(f *Facts) { f.Config.Server.ServerTLSBootstrap = false }, cis.Fail},
		"4.2.10": {cis.Pass, func(f *Facts) { f.Config.Node.RotateCertificates = false }, cis.Fail},
		"4.2.11": {cis.Pass, func(f *Facts) { f.Config.Server.CertFile = "/x" }, cis.Manual},
		"4.2.12": {cis.Pass, func(f *Facts) {
			f.Config.Server.CipherSuites = []uint16{tls.TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA}
		}, cis.Fail},
		"4.2.13": {cis.Pass, func(f *Facts) { f.Config.Pods.PidsLimit = -1 }, cis.Manual},
		"4.2.14": {cis.Pass, func(f *Facts) { f.Config.Pods.SeccompDefault = false }, cis.Manual},
		"4.3.1":  {cis.NotApplicable, nil, ""},
	}
	verdict := func(f *Facts, id string) cis.Verdict {
		report := Check(f)
		i := slices.IndexFunc(report.Results, func(r cis.Result) bool { return r.ID == id })
		return report.Results[i].Verdict
	}
	if len(rows) != len(Controls()) || len(rows) != len(checks) {
		t.Errorf("got %d rows, %d controls and %d checks", len(rows), len(Controls()), len(checks))
	}
	for id, row := range rows {
		if got := verdict(joined(), id); got != row.good {
			t.Errorf("%s: got %s, want %s", id, got, row.good)
		}
		if row.change == nil {
			continue
		}
		f := joined()
		row.change(f)
		if got := verdict(f, id); got != row.bad {
			t.Errorf("%s after the change: got %s, want %s", id, got, row.bad)
		}
	}
	for _, c := range cis.Controls("4") {
		if checks[c.ID] == nil {
			t.Errorf("%s has no check", c.ID)
		}
	}
}

func TestChecksOfOtherNodes(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*Facts)
		want   map[string]cis.Verdict
	}{
		"standalone without a port": {func(f *Facts) {
			f.Config.Kubeconfig, f.Kubeconfigs, f.Config.Server.ClientCAFile, f.ClientCA = "", nil, "", cis.File{}
		}, map[string]cis.Verdict{"4.1.5": cis.NotApplicable, "4.1.7": cis.NotApplicable, "4.2.2": cis.NotApplicable,
			"4.2.8": cis.NotApplicable, "4.2.10": cis.NotApplicable}},
		"disabled port": {func(f *Facts) { f.Config.Server.Enabled = false },
			map[string]cis.Verdict{"4.2.1": cis.NotApplicable, "4.2.12": cis.NotApplicable}},
		"flags only": {func(f *Facts) { f.ConfigFile, f.Units = cis.File{}, nil }, map[string]cis.Verdict{
			"4.1.1": cis.NotApplicable, "4.1.2": cis.NotApplicable, "4.1.9": cis.NotApplicable,
			"4.1.10": cis.NotApplicable}},
		"missing CA": {func(f *Facts) { f.ClientCA.Err = os.ErrNotExist }, map[string]cis.Verdict{"4.2.3": cis.Fail}},
		"configured certificate": {func(f *Facts) { f.Config.Server.CertFile = "/x" },
			map[string]cis.Verdict{"4.2.9": cis.Pass}},
		"TLS 1.3 only": {func(f *Facts) {
			f.Config.Server.MinVersion = tls.VersionTLS13
			f.Config.Server.CipherSuites = []uint16{tls.TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA}
		}, map[string]cis.Verdict{"4.2.12": cis.Pass}},
		"strong suites": {func(f *Facts) {
			f.Config.Server.CipherSuites = []uint16{tls.TLS_AES_128_GCM_SHA256,
				tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256}
		}, map[string]cis.Verdict{"4.2.12": cis.Pass}},
		"lock file of host-local": {func(f *Facts) {
			f.CNI = append(f.CNI, cis.File{Path: "/var/lib/cni/networks/berth/lock", Mode: 0o750})
		}, map[string]cis.Verdict{"1.1.9": cis.Accepted, "1.1.10": cis.Pass}},
		"lock file beside an open file": {func(f *Facts) {
			f.CNI = []cis.File{{Path: "/lock", Mode: 0o750}, {Path: "/c", Mode: 0o644}}
		}, map[string]cis.Verdict{"1.1.9": cis.Fail}},
		"only private lock files": {func(f *Facts) { f.CNI = []cis.File{{Path: "/lock", Mode: 0o600}} },
			map[string]cis.Verdict{"1.1.9": cis.Pass}},
		"lock file with content": {func(f *Facts) { f.CNI = []cis.File{{Path: "/lock", Mode: 0o750, Size: 1}} },
			map[string]cis.Verdict{"1.1.9": cis.Fail}},
		"no CNI files": {func(f *Facts) { f.CNI = nil }, map[string]cis.Verdict{"1.1.9": cis.NotApplicable}},
		"unreadable CNI files": {func(f *Facts) { f.CNIErr = errors.New("x") },
			map[string]cis.Verdict{"1.1.9": cis.NotChecked}},
		"unlimited events": {func(f *Facts) { f.Config.Node.EventQPS = 0 },
			map[string]cis.Verdict{"4.2.8": cis.Pass}},
	} {
		f := joined()
		c.change(f)
		for _, r := range Check(f).Results {
			if want, found := c.want[r.ID]; found && r.Verdict != want {
				t.Errorf("%s: %s: got %+v, want %s", name, r.ID, r.Finding, want)
			}
		}
	}
}

// TestReadReadsRealFiles reads the facts of a configuration file with default settings.
func TestReadReadsRealFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	config := filepath.Join(dir, "config.yaml")
	text := "apiVersion: berth.dev/v1alpha1\nkind: BerthConfiguration\ncniConfDir: " + dir + "/net.d\n"
	for path, content := range map[string]string{config: text, dir + "/net.d/10-one.conflist": "{}", dir + "/u": ""} {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(config, 0o644); err != nil {
		t.Fatal(err)
	}
	c, _, err := nodeconfig.Load(&nodeconfig.Flags{Config: config})
	if err != nil {
		t.Fatal(err)
	}
	f := Read(c, []string{dir + "/none", dir + "/u"})
	isOwn := func(file cis.File) bool { return strings.HasPrefix(file.Path, dir) }
	if f.ConfigFile.Mode != 0o644 || len(f.Units) != 1 || f.CNIErr != nil || !slices.ContainsFunc(f.CNI, isOwn) ||
		slices.ContainsFunc(f.CNI, func(file cis.File) bool { return file.Dir }) {
		t.Errorf("got %+v", f)
	}
	for _, r := range Check(f).Results {
		if r.ID == "4.1.9" && (r.Verdict != cis.Fail || r.Remedy != "chmod 600 "+config) {
			t.Errorf("got %+v", r)
		}
	}
}
