package pair

import (
	"strings"
	"testing"

	"berth/control"
)

// TestAPodReachesItsServer asks the server from inside a pod as its service
// account, at the place that the pod's environment names.
func TestAPodReachesItsServer(t *testing.T) {
	t.Parallel()
	p := start(t, pairOptions{Server: []func(*control.Config){func(c *control.Config) { c.Listen = "0.0.0.0:0" }}})
	p.Apply(t, p.pod("inside", "", "server", "/apis/authentication.k8s.io/v1/selfsubjectreviews", ",", "sleep"))
	p.until("the server's answer in the pod", func() string {
		text := p.log("inside")
		if !strings.Contains(text, `201`) || !strings.Contains(text, `"username":"system:serviceaccount:default:default"`) {
			return text
		}
		return ""
	})
}
