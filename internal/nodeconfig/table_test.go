package nodeconfig

import (
	"encoding/json"
	"flag"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"
)

var rewrite = flag.Bool("rewrite", false, "write docs/reference/configuration.md")

// leaves returns the paths of all fields. Structs of this configuration are expanded. Other structs
// (quantities, durations, taints) are values.
func leaves(t reflect.Type, prefix string) []string {
	var out []string
	for f := range t.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		ft := f.Type
		if ft.Kind() == reflect.Pointer {
			ft = ft.Elem()
		}
		_, decodesItself := reflect.PointerTo(ft).MethodByName("UnmarshalJSON")
		switch {
		case name == "" && f.Anonymous && ft.Name() == "TypeMeta":
		case name == "" && f.Anonymous:
			out = append(out, leaves(ft, prefix)...)
		case ft.Kind() == reflect.Struct && !decodesItself:
			out = append(out, leaves(ft, prefix+name+".")...)
		default:
			out = append(out, prefix+name)
		}
	}
	return out
}

func TestTableHasEveryFieldOnce(t *testing.T) { // N1
	want := leaves(reflect.TypeFor[kubeletv1beta1.KubeletConfiguration](), "")
	var got []string
	for _, f := range Fields() {
		got = append(got, f.Path)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("the table and the type differ (-type +table):\n%s", d)
	}
}

func TestTableIsComplete(t *testing.T) {
	for _, f := range Fields() {
		if f.Class < Supported || f.Class > Rejected {
			t.Errorf("%s has no class", f.Path)
		}
		if f.Class != Supported && f.Note == "" {
			t.Errorf("%s is %s without a reason", f.Path, f.Class)
		}
		if f.Class != Rejected && f.Accepted != nil {
			t.Errorf("%s is %s and has neutral values", f.Path, f.Class)
		}
		for _, v := range f.Accepted {
			if !json.Valid([]byte(v)) {
				t.Errorf("%s: neutral value %s is not JSON", f.Path, v)
			}
		}
	}
}

// TestSupportedFieldsAreAccepted lists fields that must be accepted.
func TestSupportedFieldsAreAccepted(t *testing.T) {
	for name := range strings.FieldsSeq(
		`address port healthzPort healthzBindAddress tls* authentication.x509.* authentication.webhook.* authorization.*
		containerRuntimeEndpoint imageServiceEndpoint cgroupDriver cgroupRoot failCgroupV1 failSwapOn oomScoreAdj
		clusterDNS clusterDomain resolvConf podLogsDir staticPodPath fileCheckFrequency maxPods podCIDR podPidsLimit
		serializeImagePulls maxParallelImagePulls registryPullQPS imageGC* evictionHard evictionSoft* kubeReserved
		systemReserved containerLogMaxSize containerLogMaxFiles crashLoopBackOff.* allowedUnsafeSysctls nodeStatus*
		nodeLease* shutdownGracePeriod* registerNode registerWithTaints rotateCertificates serverTLSBootstrap`) {
		found := false
		for _, f := range Fields() {
			prefix, many := strings.CutSuffix(name, "*")
			if f.Path == name || many && strings.HasPrefix(f.Path, prefix) {
				found = true
				if f.Class != Supported {
					t.Errorf("%s is %s", f.Path, f.Class)
				}
			}
		}
		if !found {
			t.Errorf("missing field %s", name)
		}
	}
}

func TestBerthTableHasEveryField(t *testing.T) {
	var got []string
	for _, f := range BerthFields() {
		got = append(got, f.Name)
	}
	if d := cmp.Diff(leaves(reflect.TypeFor[BerthConfiguration](), ""), got); d != "" {
		t.Error(d)
	}
}

func TestGuideMatchesTable(t *testing.T) { // N4
	const path = "../../docs/reference/configuration.md"
	if *rewrite {
		if err := os.MkdirAll("../../docs/reference", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(Guide()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(Guide(), string(got)); d != "" {
		t.Errorf("run go generate ./internal/nodeconfig:\n%s", d)
	}
}
