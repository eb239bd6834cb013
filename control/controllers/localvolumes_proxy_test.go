package controllers

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// TestNodeVolumesByProxy checks the requests to the subresource nodes/proxy, and how responses of nodes and of the API
// server become errors.
func TestNodeVolumesByProxy(t *testing.T) {
	t.Parallel()
	var code int
	var body, got string
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, _ := io.ReadAll(r.Body)
		got = r.Method + " " + r.URL.Path + " " + string(text)
		if strings.HasPrefix(body, "{") {
			w.Header().Set("Content-Type", "application/json")
		}
		w.WriteHeader(code)
		_, _ = io.WriteString(w, body)
	}))
	t.Cleanup(api.Close)
	client, err := kubernetes.NewForConfig(&rest.Config{Host: api.URL})
	if err != nil {
		t.Fatal(err)
	}
	nodes := NewNodeVolumes(client)

	code, body = 200, `{"driver": "local.berth.dev", "availableBytes": 7, "volumes": [{"name": "a"}]}`
	if list, err := nodes.List(t.Context(), "n1"); err != nil || list.AvailableBytes != 7 || len(list.Volumes) != 1 ||
		got != "GET /api/v1/nodes/n1/proxy/localvolumes " {
		t.Errorf("list: %+v %v, request %s", list, err, got)
	}
	body = `{"node": {"nodeName": "n1"}}`
	if _, err := nodes.List(t.Context(), "n1"); !errors.Is(err, ErrNoLocalVolumes) {
		t.Errorf("list of another program: %v", err)
	}
	body = `{"name": "a", "capacityBytes": 9}`
	if v, err := nodes.Ensure(t.Context(), "n1", "a", 8); err != nil || v.CapacityBytes != 9 ||
		got != `PUT /api/v1/nodes/n1/proxy/localvolumes/a {"capacityBytes":8}` {
		t.Errorf("ensure: %+v %v, request %s", v, err, got)
	}
	if _, err := nodes.Grow(t.Context(), "n1", "a", 8); err != nil ||
		got != `PUT /api/v1/nodes/n1/proxy/localvolumes/a {"capacityBytes":8,"grow":true}` {
		t.Errorf("grow: %v, request %s", err, got)
	}
	for _, c := range []struct {
		code int
		body string
		want error
		text string
	}{
		{507, "not enough free space: 8 bytes requested", ErrNoSpaceOnNode, "8 bytes requested"},
		{409, "volume in use: a", ErrVolumeInUse, "a"},
		{410, "volume not found: a has no image", ErrLocalVolumeLost, "a has no image"},
		{400, "invalid volume", ErrInvalidLocalVolume, "invalid volume"},
		{501, "mkfs.ext4 not found", ErrNoLocalVolumes, "mkfs.ext4 not found"},
		{404, "404 page not found", ErrNoLocalVolumes, ""},
		{503, `{"kind":"Status","apiVersion":"v1","status":"Failure","message":"node n1 has no address yet","code":503}`,
			nil, "node n1 has no address yet"},
		{502, "error trying to reach service: dial tcp: connection refused", nil, "connection refused"},
	} {
		code, body = c.code, c.body
		err := nodes.Delete(t.Context(), "n1", "a")
		if err == nil || c.want != nil && !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.text) {
			t.Errorf("code %d %s: got %v", c.code, c.body, err)
		}
	}
	if got != "DELETE /api/v1/nodes/n1/proxy/localvolumes/a " {
		t.Errorf("delete: request %s", got)
	}
}
