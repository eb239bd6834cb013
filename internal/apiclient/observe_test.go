package apiclient

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

func TestRequestsAreReported(t *testing.T) {
	t.Parallel()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Error(w, "no such pod", http.StatusNotFound)
	}))
	t.Cleanup(s.Close)
	var got []Request
	o := Options{
		Config: &rest.Config{Host: s.URL}, OnRequest: func(r Request) { got = append(got, r) },
	}
	c, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	get := func(c *Client) {
		if err := c.Get(t.Context(), Pods, "default", "web", &corev1.Pod{}); err == nil {
			t.Error("a missing pod was found")
		}
	}
	get(c)
	if err := c.Delete(t.Context(), Pods, "default", "web", metav1.DeleteOptions{}); err == nil {
		t.Error("a missing pod was deleted")
	}
	heartbeat, err := c.Unthrottled()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(heartbeat.Close)
	get(heartbeat)
	s.Close()
	get(c)
	host := strings.TrimPrefix(s.URL, "http://")
	for i := range got {
		if got[i].Duration <= 0 {
			t.Errorf("request %d has no duration", i)
		}
		got[i].Duration = 0
	}
	want := []Request{
		{Method: "GET", Host: host, Code: 404}, {Method: "DELETE", Host: host, Code: 404},
		{Method: "GET", Host: host, Code: 404},
	}
	if len(got) < 4 || !slices.Equal(got[:3], want) || got[3] != (Request{Method: "GET", Host: host}) {
		t.Errorf("got %+v", got)
	}
}

func TestWatchesAreReportedAsWatches(t *testing.T) {
	t.Parallel()
	var got Request
	rt := observed(roundTripFunc(func(*http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}, nil
	}), func(r Request) { got = r })
	for query, want := range map[string]bool{"watch=true": true, "watch=1": true, "watch=false": false, "": false} {
		r := httptest.NewRequest(http.MethodGet, "http://server/api/v1/pods?"+query, nil)
		resp, err := rt.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if got.Watch != want || got.Host != "server" {
			t.Errorf("%s: got %+v", query, got)
		}
	}
}

type roundTripFunc func(*http.Request) (*http.Response, error)

func (f roundTripFunc) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
