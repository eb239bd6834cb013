package pressure

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

func TestExceededLimit(t *testing.T) {
	t.Parallel()
	pod := func(mib ...int64) *corev1.Pod { // one container per limit, named a, b, …; 0: no limit
		p := &corev1.Pod{}
		for i, n := range mib {
			c := corev1.Container{Name: string(rune('a' + i))}
			if n > 0 {
				c.Resources.Limits = corev1.ResourceList{
					corev1.ResourceEphemeralStorage: *resource.NewQuantity(n*mi, resource.BinarySI),
				}
			}
			p.Spec.Containers = append(p.Spec.Containers, c)
		}
		return p
	}
	con := func(name string, layer, logs int64) ContainerUsage {
		return ContainerUsage{Name: name, Disk: (layer + logs) * mi, Layer: layer * mi}
	}
	use := func(volumes int64, all ...ContainerUsage) Usage { // volumes include logs
		u := Usage{Volumes: DiskUsage{Bytes: volumes * mi}, Containers: all}
		for _, c := range all {
			u.Volumes.Bytes += c.Disk - c.Layer
		}
		return u
	}
	sidecar := pod(100)
	always := corev1.ContainerRestartPolicyAlways
	sidecar.Spec.InitContainers = pod(1).Spec.Containers
	sidecar.Spec.InitContainers[0].Name, sidecar.Spec.InitContainers[0].RestartPolicy = "s", &always
	for _, row := range []struct {
		sentence string
		pod      *corev1.Pod
		use      Usage
		want     string
	}{
		{"without limits nothing is exceeded", pod(0, 0), use(500, con("a", 500, 500)), ""},
		{"exactly the limit is not exceeded", pod(10), use(2, con("a", 5, 3)), ""},
		{"the writable layer and the logs of a container count", pod(10, 90), use(0, con("a", 6, 5)),
			`Container a exceeded its local ephemeral storage limit "10Mi". `},
		{"volumes do not count for a container", pod(10, 90), use(50, con("a", 6, 3)), ""},
		{"volumes count for the pod", pod(10, 20), use(25, con("a", 3, 0), con("b", 3, 0)),
			"Pod ephemeral local storage usage exceeds the total limit of containers 30Mi. "},
		{"the pod limit is reported first", pod(10), use(0, con("a", 11, 0)),
			"Pod ephemeral local storage usage exceeds the total limit of containers 10Mi. "},
		{"the limit of one container limits the pod", pod(10, 0), use(0, con("b", 11, 0)),
			"Pod ephemeral local storage usage exceeds the total limit of containers 10Mi. "},
		{"only the newest instance counts", pod(10),
			use(0, con("a", 6, 0), ContainerUsage{Name: "a", Disk: 6 * mi, Layer: 6 * mi}), ""},
		{"the limit of a sidecar applies", sidecar, use(0, con("s", 2, 0)),
			`Container s exceeded its local ephemeral storage limit "1Mi". `},
	} {
		got, signal := "", "ephemeralcontainerfs.limit"
		if over := ExceededLimit(row.pod, row.use); over != nil {
			if got = over.Message; got[0] == 'P' {
				signal = "ephemeralpodfs.limit"
			}
			if over.Signal != signal {
				t.Errorf("%s: got signal %s", row.sentence, over.Signal)
			}
		}
		if got != row.want {
			t.Errorf("%s: %q, want %q", row.sentence, got, row.want)
		}
	}
}
