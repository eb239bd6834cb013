package e2e

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/images"
)

func TestImageVolumes(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, s *Namespace) {
		s.Pod("reads", "volumes:\n- {name: tools, image: {reference: 'busybox:1.36'}}\n- {name: far, image: "+
			"{reference: '"+images.StressRef+"'}}\ncontainers:\n"+
			box("c", "volumeMounts: [{name: tools, mountPath: /tools}, {name: tools, mountPath: /bin-only, subPath: "+
				"bin}, {name: far, mountPath: /far}]",
				"ls /tools", "ls /bin-only", "ls /far", end, "sleep"))
		if !s.supports("image volumes") {
			s.Waiting("reads", "c", "CreateContainerConfigError")
			s.contains("describe", s.Berth("describe", "-n", s.ns, "reads"),
				"image volumes need containerd 2.1 or newer, this node has 1.6")
			return
		}
		s.Running("reads")
		log := s.WaitOutput("reads", "c")
		s.contains("the log", log, "bin", "busybox")
		if out, err := s.Try("exec", "-n", s.ns, "reads", "-c", "c", "--", "/bin/testbox", "write", "/tools/x",
			"y"); err == nil || !strings.Contains(out, "read-only") {
			t.Errorf("image volume is writable: %v %s", err, out)
		}
		s.Event("reads", `Pulling: Pulling image "`+images.StressRef)
		s.Pod("missing", "volumes: [{name: v, image: {reference: 'berth/none:1', pullPolicy: Never}}]\ncontainers:\n"+
			box("c", "volumeMounts: [{name: v, mountPath: /v}]", "sleep"))
		s.Waiting("missing", "c", "ErrImageNeverPull")

		// A removed image is pulled again for the next container start.
		repo := s.pushImage(s.Open, "volume")
		s.Pod("lost", "volumes: [{name: v, image: {reference: '"+repo+":1'}}]\ncontainers:\n"+
			box("c", "volumeMounts: [{name: v, mountPath: /v}]", "ls /v", end, "sleep"))
		s.Running("lost")
		if _, err := s.Host.Image.RemoveImage(t.Context(),
			&runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: "docker.io/" + repo +
				":1"}}); err != nil {
			t.Fatal(err)
		}
		s.Berth("restart", "-n", s.ns, "lost")
		s.Wait("lost", "restarted", func(p *corev1.Pod) bool {
			c := status(p, "c")
			return c.RestartCount == 1 && c.State.Running != nil
		})
		s.contains("the log", s.WaitOutput("lost", "c"), "bin")
	})
}
