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

// server answers every request about a pod with one code.
type server struct {
	mu sync.Mutex
	answer
	asked []string // methods, in order
	next  func()   // is called before the next answer; nil: nothing is
}

type answer struct {
	code int
	bare bool // as what is on the way to a server does
}

var taken = answer{code: http.StatusOK}

// answers has it answer otherwise from now on.
func (s *server) answers(a answer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answer = a
}

func (s *server) RoundTrip(r *http.Request) (*http.Response, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = append(s.asked, r.Method)
	if next := s.next; next != nil {
		s.next = nil
		next()
	}
	out := &http.Response{StatusCode: s.code, Header: http.Header{"Content-Type": {"text/plain"}}, Body: http.NoBody, Request: r}
	if s.bare {
		return out, nil
	}
	var body any = corev1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}}
	if s.code != http.StatusOK {
		body = metav1.Status{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure, Code: int32(s.code),
			Reason: map[int]metav1.StatusReason{
				http.StatusBadRequest: metav1.StatusReasonBadRequest, http.StatusNotFound: metav1.StatusReasonNotFound, http.StatusConflict: metav1.StatusReasonConflict, http.StatusUnprocessableEntity: metav1.StatusReasonInvalid,
			}[s.code],
		}
	}
	text, err := json.Marshal(body)
	out.Header.Set("Content-Type", "application/json")
	out.Body = io.NopCloser(bytes.NewReader(text))
	return out, err
}

// posting runs posts against a server, in a bubble.
func posting(t *testing.T, s *server, test func(p *Manager)) {
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

// after lets time pass and returns what has been asked since the last time.
func (s *server) after(d time.Duration) []string {
	time.Sleep(d)
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	asked := s.asked
	s.asked = nil
	return asked
}

func running() corev1.PodStatus { return corev1.PodStatus{Phase: corev1.PodRunning} }

// TestAnObjectIsThereAsLongAsTheSourceShowsIt: P8. Whatever is answered, its status is
// told and it is deleted in the end; and nobody is asked without a pause.
func TestAnObjectIsThereAsLongAsTheSourceShowsIt(t *testing.T) {
	t.Parallel()
	for name, refusal := range map[string]answer{
		"a way that knows no such path": {code: http.StatusNotFound, bare: true},
		"a server that lags behind":     {code: http.StatusNotFound},
		"a webhook that objects":        {code: http.StatusConflict},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := &server{answer: refusal}
			posting(t, s, func(p *Manager) {
				snap := snapshot("u", running())
				p.PodUpdated(snap.Pod, false)
				p.SetPodStatus(snap, false)
				if n := len(s.after(time.Minute)); n < 2 || n > 15 {
					t.Errorf("in a minute it is told %d times", n)
				}
				p.PodUpdated(snap.Pod, false)
				if n := len(s.after(retryMax)); n > 1 {
					t.Errorf("heard once more, it is told %d times at once", n)
				}
				s.answers(taken)
				if n := len(s.after(retryMax)); n != 1 || !p.Idle() {
					t.Errorf("when it is taken it is told %d times", n)
				}
				s.answers(refusal)
				at := metav1.Now()
				snap.Pod.DeletionTimestamp = &at
				p.SetPodStatus(snap, true)
				if asked := s.after(time.Minute); len(asked) < 2 || len(asked) > 15 || asked[0] != http.MethodDelete {
					t.Errorf("in a minute its deletion is asked for by %v", asked)
				}
				s.answers(taken)
				if n := len(s.after(retryMax)); n != 1 || len(p.pods) > 0 {
					t.Errorf("when it is taken its deletion is asked for %d times", n)
				}
			})
		})
	}
}

// TestAnObjectIsGoneWhenTheSourceSaysSo: P8.
func TestAnObjectIsGoneWhenTheSourceSaysSo(t *testing.T) {
	t.Parallel()
	s := &server{answer: answer{code: http.StatusNotFound}}
	posting(t, s, func(p *Manager) {
		snap := snapshot("u", running())
		p.PodUpdated(snap.Pod, false)
		p.SetPodStatus(snap, false)
		s.after(time.Second)
		p.PodUpdated(snap.Pod, true)
		if n := len(s.after(time.Hour)); n > 0 {
			t.Errorf("it is told %d times", n)
		}
		p.SetPodStatus(snap, true)
		if len(p.pods) > 0 {
			t.Error("it is remembered")
		}
	})
}

// TestAnObjectThatWasNeverShown and is not there is told no more, until it is shown
// after all: P8.
func TestAnObjectThatWasNeverShown(t *testing.T) {
	t.Parallel()
	s := &server{answer: answer{code: http.StatusNotFound}}
	posting(t, s, func(p *Manager) {
		snap := snapshot("u", running())
		p.SetPodStatus(snap, false)
		if n := len(s.after(time.Hour)); n != 1 {
			t.Errorf("it is told %d times", n)
		}
		s.answers(taken)
		p.PodUpdated(snap.Pod, false)
		if n := len(s.after(time.Hour)); n != 1 || !p.Idle() {
			t.Errorf("it is told %d times", n)
		}
		s.answers(answer{code: http.StatusNotFound})
		last := snapshot("v", running())
		at := metav1.Now()
		last.Pod.DeletionTimestamp = &at
		p.SetPodStatus(last, true)
		s.after(time.Hour)
		if _, kept := p.pods["v"]; kept {
			t.Error("one that is over is remembered")
		}
	})
}

// TestWhatComesWhileAnotherIsRefusedIsTold: P1, P6. What is refused itself is not told
// again.
func TestWhatComesWhileAnotherIsRefusedIsTold(t *testing.T) {
	t.Parallel()
	for _, code := range []int{http.StatusUnprocessableEntity, http.StatusBadRequest} {
		s := &server{answer: answer{code: code}}
		posting(t, s, func(p *Manager) {
			snap := snapshot("u", running())
			p.PodUpdated(snap.Pod, false)
			s.next = func() {
				p.SetPodStatus(snapshot("u", corev1.PodStatus{Phase: corev1.PodSucceeded}), false)
				s.next = func() { s.answer = taken }
			}
			p.SetPodStatus(snap, false)
			if n := len(s.after(retryBase)); n != 2 || !p.Idle() {
				t.Errorf("%d: the last status is told %d times", code, n-1)
			}
			s.answers(answer{code: code})
			p.SetPodStatus(snap, false)
			if n := len(s.after(time.Hour)); n != 1 {
				t.Errorf("%d: what is refused is told %d times", code, n)
			}
		})
	}
}
