package validation_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/randfill"

	"berth/control/validation"
	"berth/internal/rules"
	workloads "berth/workloads/validation"
)

// kinds returns all kinds with rules in a fixed order.
func kinds() []schema.GroupKind {
	all := map[schema.GroupKind]rules.Rules{}
	for _, group := range validation.OtherGroups(validation.Compilers{}) {
		maps.Copy(all, group)
	}
	for _, kind := range workloads.Kinds() {
		all[kind] = rules.Rules{}
	}
	return slices.SortedFunc(maps.Keys(all), func(a, b schema.GroupKind) int {
		return cmpStrings(a.String(), b.String())
	})
}

func cmpStrings(a, b string) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// empty returns an empty object of the stored type.
func empty(t testing.TB, kind schema.GroupKind) runtime.Object {
	if kind.Kind == "HorizontalPodAutoscaler" {
		return &autoscalingv2.HorizontalPodAutoscaler{}
	}
	if kind.Group == "events.k8s.io" {
		return &corev1.Event{}
	}
	for _, gv := range scheme.Scheme.VersionsForGroupKind(kind) {
		if gv.Version == "v1" {
			obj, err := scheme.Scheme.New(gv.WithKind(kind.Kind))
			if err != nil {
				t.Fatal(err)
			}
			return obj
		}
	}
	t.Fatalf("unknown kind %s", kind)
	return nil
}

// words are strings that reach more rules than random ones.
var words = []string{
	"",
	"a",
	"web",
	"a/b",
	"x_",
	"RollingUpdate",
	"Always",
	"Never",
	"OnFailure",
	"None",
	"TCP",
	"80",
	"10.0.0.1",
	"::1",
	"10.0.0.0/8",
	"storage",
	"cpu",
	"100%",
	"0%",
	"*/5 * * * *",
	"@hourly",
	"Europe/Berlin",
	"ClusterIP",
	"LoadBalancer",
	"ExternalName",
	"IPv4",
	"Indexed",
	"FailJob",
	"In",
	"Exists",
	"kubernetes.io/tls",
	"system-node-critical",
	"User",
	"ServiceAccount",
	"Container",
	"Pod",
	"d.example.com/x",
	"device.driver == 'a'",
	"object.spec.replicas > 1",
	"variables.a",
	"pods/*",
	"*",
	"v1",
	"All",
	"NoSchedule",
	"1.2.3",
}

// values returns fill functions for types that cannot have random values.
func values() []any {
	return []any{
		func(s *string, c randfill.Continue) { *s = words[c.Intn(len(words))] },
		func(r *runtime.RawExtension, c randfill.Continue) { *r = runtime.RawExtension{Raw: []byte(`{"a":1}`)} },
		func(q *resource.Quantity, c randfill.Continue) {
			*q = *resource.NewMilliQuantity(c.Int63n(4000)-500, resource.DecimalSI)
		},
		func(v *intstr.IntOrString, c randfill.Continue) {
			*v = intstr.FromInt32(c.Int31n(3) - 1)
			if c.Bool() {
				*v = intstr.FromString(words[c.Intn(len(words))])
			}
		},
		func(m *metav1.Time, c randfill.Continue) { *m = metav1.Unix(c.Int63n(1<<31), 0) },
		func(m *metav1.MicroTime, c randfill.Continue) {
			*m = metav1.NewMicroTime(time.Unix(c.Int63n(1<<31), 0))
		},
		func(f *metav1.FieldsV1, _ randfill.Continue) {},
	}
}

func TestRulesInvariantsOnRandomObjects(t *testing.T) {
	t.Parallel()
	for _, kind := range kinds() {
		t.Run(kind.String(), func(t *testing.T) {
			t.Parallel()
			for seed := range int64(16) {
				random := randfill.NewWithSeed(seed).NilChance(float64(seed%4)/4).NumElements(0,
					2).MaxDepth(12).Funcs(values()...)
				obj, old := empty(t, kind), empty(t, kind)
				random.Fill(obj)
				random.Fill(old)
				tested.CheckInvariants(t, kind, obj, old)
				tested.CheckInvariants(t, kind, empty(t, kind), obj)
			}
		})
	}
}

func FuzzRules(f *testing.F) {
	for i := range kinds() {
		f.Add(
			uint8(i),
			[]byte(fmt.Sprintf(`{"metadata":{"name":"a%d","namespace":"b"},"spec":{"selector":{}}}`, i)),
			[]byte(`{}`),
		)
	}
	f.Fuzz(func(t *testing.T, which uint8, one, two []byte) {
		all := kinds()
		kind := all[int(which)%len(all)]
		obj, old := empty(t, kind), empty(t, kind)
		if json.Unmarshal(one, obj) == nil && json.Unmarshal(two, old) == nil {
			tested.CheckInvariants(t, kind, obj, old)
		}
	})
}
