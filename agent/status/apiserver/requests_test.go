package apiserver

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"berth/internal/apiclient"
)

// fakeServer sends the same response to every request.
type fakeServer struct {
	mu sync.Mutex
	response
	methods []string // received methods, in order
	next    func()   // called once before the next response
}

type response struct {
	code int
	bare bool // without a Status body, as from a proxy
}

var accepted = response{code: http.StatusOK}

// respond changes the response.
func (s *fakeServer) respond(a response) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.response = a
}

func (s *fakeServer) RoundTrip(r *http.Request) (*http.Response, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.methods = append(s.methods, r.Method)
	if next := s.next; next != nil {
		s.next = nil
		next()
	}
	out := &http.Response{StatusCode: s.code, Header: http.Header{"Content-Type": {"text/plain"}}, Body: http.NoBody,
		Request: r}
	if s.bare {
		return out, nil
	}
	var body any = corev1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}}
	if s.code != http.StatusOK {
		body = metav1.Status{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure,
			Code: int32(s.code),
			Reason: map[int]metav1.StatusReason{
				http.StatusBadRequest: metav1.StatusReasonBadRequest, http.StatusNotFound: metav1.StatusReasonNotFound,
				http.StatusConflict:            metav1.StatusReasonConflict,
				http.StatusUnprocessableEntity: metav1.StatusReasonInvalid,
			}[s.code],
		}
	}
	text, err := json.Marshal(body)
	out.Header.Set("Content-Type", "application/json")
	out.Body = io.NopCloser(bytes.NewReader(text))
	return out, err
}

// runManager runs a Manager with a server in a synctest bubble.
func runManager(t *testing.T, s *fakeServer, test func(p *Manager)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		c, err := apiclient.New(apiclient.Options{Config: &rest.Config{
			Host: "http://192.0.2.1", WrapTransport: func(http.RoundTripper) http.RoundTripper { return s },
		}})
		if err != nil {
			t.Fatal(err)
		}
		p := New(Options{Client: c, NodeName: "n"})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- p.Run(ctx) }()
		test(p)
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// advance advances the time and returns the methods received since the last call.
func (s *fakeServer) advance(d time.Duration) []string {
	time.Sleep(d)
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	methods := s.methods
	s.methods = nil
	return methods
}

func runningStatus() corev1.PodStatus { return corev1.PodStatus{Phase: corev1.PodRunning} }

// TestRequestsRetriedWhileSourceReportsObject checks P8: after any temporary error the status is
// sent and the object is deleted in the end, with pauses between requests.
func TestRequestsRetriedWhileSourceReportsObject(t *testing.T) {
	t.Parallel()
	for name, rejection := range map[string]response{
		"a proxy without this path": {code: http.StatusNotFound, bare: true},
		"an outdated server":        {code: http.StatusNotFound},
		"a webhook that rejects it": {code: http.StatusConflict},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := &fakeServer{response: rejection}
			runManager(t, s, func(p *Manager) {
				snap := snapshot("u", runningStatus())
				p.PodUpdated(snap.Pod, false)
				p.SetPodStatus(snap, false)
				if n := len(s.advance(time.Minute)); n < 2 || n > 15 {
					t.Errorf("%d patches in a minute", n)
				}
				p.PodUpdated(snap.Pod, false)
				if n := len(s.advance(retryMax)); n > 1 {
					t.Errorf("%d patches after a repeated report", n)
				}
				s.respond(accepted)
				if n := len(s.advance(retryMax)); n != 1 || !p.Idle() {
					t.Errorf("%d patches until accepted", n)
				}
				s.respond(rejection)
				at := metav1.Now()
				snap.Pod.DeletionTimestamp = &at
				p.SetPodStatus(snap, true)
				if methods := s.advance(time.Minute); len(methods) < 2 || len(methods) > 15 ||
					methods[0] != http.MethodDelete {
					t.Errorf("requests for the deletion in a minute: %v", methods)
				}
				s.respond(accepted)
				if n := len(s.advance(retryMax)); n != 1 || len(p.pods) > 0 {
					t.Errorf("%d deletions until accepted", n)
				}
			})
		})
	}
}

// TestNoRequestsAfterSourceReportsDeletion checks P8.
func TestNoRequestsAfterSourceReportsDeletion(t *testing.T) {
	t.Parallel()
	s := &fakeServer{response: response{code: http.StatusNotFound}}
	runManager(t, s, func(p *Manager) {
		snap := snapshot("u", runningStatus())
		p.PodUpdated(snap.Pod, false)
		p.SetPodStatus(snap, false)
		s.advance(time.Second)
		p.PodUpdated(snap.Pod, true)
		if n := len(s.advance(time.Hour)); n > 0 {
			t.Errorf("%d patches", n)
		}
		p.SetPodStatus(snap, true)
		if len(p.pods) > 0 {
			t.Error("the pod is still known")
		}
	})
}

// TestNotFoundWithoutSourceReport checks P8 for an object that the source has not reported.
func TestNotFoundWithoutSourceReport(t *testing.T) {
	t.Parallel()
	s := &fakeServer{response: response{code: http.StatusNotFound}}
	runManager(t, s, func(p *Manager) {
		snap := snapshot("u", runningStatus())
		p.SetPodStatus(snap, false)
		if n := len(s.advance(time.Hour)); n != 1 {
			t.Errorf("%d patches", n)
		}
		s.respond(accepted)
		p.PodUpdated(snap.Pod, false)
		if n := len(s.advance(time.Hour)); n != 1 || !p.Idle() {
			t.Errorf("%d patches", n)
		}
		s.respond(response{code: http.StatusNotFound})
		last := snapshot("v", runningStatus())
		at := metav1.Now()
		last.Pod.DeletionTimestamp = &at
		p.SetPodStatus(last, true)
		s.advance(time.Hour)
		if _, kept := p.pods["v"]; kept {
			t.Error("a removed pod is still known")
		}
	})
}

// TestNewestStatusSentAfterRejection checks P1 and P6. A rejected status is not sent again.
func TestNewestStatusSentAfterRejection(t *testing.T) {
	t.Parallel()
	for _, code := range []int{http.StatusUnprocessableEntity, http.StatusBadRequest} {
		s := &fakeServer{response: response{code: code}}
		runManager(t, s, func(p *Manager) {
			snap := snapshot("u", runningStatus())
			p.PodUpdated(snap.Pod, false)
			s.next = func() {
				p.SetPodStatus(snapshot("u", corev1.PodStatus{Phase: corev1.PodSucceeded}), false)
				s.next = func() { s.response = accepted }
			}
			p.SetPodStatus(snap, false)
			if n := len(s.advance(retryBase)); n != 2 || !p.Idle() {
				t.Errorf("%d: %d patches of the last status", code, n-1)
			}
			s.respond(response{code: code})
			p.SetPodStatus(snap, false)
			if n := len(s.advance(time.Hour)); n != 1 {
				t.Errorf("%d: %d patches of a rejected status", code, n)
			}
		})
	}
}
