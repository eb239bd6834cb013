package control

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	restclient "k8s.io/client-go/rest"

	"berth/control"
)

// unreadLists are lists whose response the client does not read.
type unreadLists struct {
	rejected atomic.Int64
	stop     func() // cancels the requests and waits for them
}

// list starts lists of a resource of the namespace default and does not read the responses. The server cannot
// send them completely, because they are larger than the buffers of the connection.
func (n *noisyAccount) list(t *testing.T, resource string, count int) *unreadLists {
	t.Helper()
	client, err := restclient.HTTPClientFor(n.config)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	r := &unreadLists{}
	var all sync.WaitGroup
	for range count {
		all.Go(func() {
			response, err := n.getList(ctx, client, resource)
			if err != nil {
				return // canceled
			}
			defer response.Body.Close()
			if response.StatusCode == http.StatusTooManyRequests {
				r.rejected.Add(1)
				return
			}
			<-ctx.Done()
		})
	}
	r.stop = sync.OnceFunc(func() { cancel(); all.Wait() })
	t.Cleanup(r.stop)
	return r
}

func (n *noisyAccount) getList(ctx context.Context, client *http.Client, resource string) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet,
		n.config.Host+"/api/v1/namespaces/default/"+resource, http.NoBody)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Accept-Encoding", "identity")
	return client.Do(request)
}

// TestFairnessOfLists lists large ConfigMaps. A list takes more of the account's share than a small request, by
// the number and size of the objects, so that few lists run at the same time.
func TestFairnessOfLists(t *testing.T) {
	t.Parallel()
	first := Start(t, withoutControllers)
	for i := range 60 {
		createConfigMap(t, first, metav1.NamespaceDefault, configMap(fmt.Sprintf("big-%d", i), "text",
			strings.Repeat("x", 100_000)))
	}
	first.Stop(t)
	s := Start(t, withoutControllers, func(c *control.Config) { // counts the objects when it is ready
		c.DataDir = first.DataDir
		c.MaxRequestsInFlight, c.MaxMutatingRequestsInFlight = 40, 20
	})
	s.waitForDefaultLevels(t)
	critical := newCriticalClients(t, s)
	noisy := newNoisyAccount(t, s)
	// The share of workload-low is 25 of 60 seats, and a request takes at most a sixth of it.
	const seats, count = 4, 40
	eventually(t, "lists that take several seats", func() (bool, string) { return noisy.listTakes(t, seats) })
	lists := noisy.list(t, "configmaps", count)
	eventually(t, "all lists at the server", func() (bool, string) {
		level, err := s.priorityLevel(t.Context(), "workload-low")
		rejected := int(lists.rejected.Load())
		return err == nil && level.executing > 0 && level.executing+level.waiting+rejected >= count,
			fmt.Sprintf("%+v, %d rejected, %v", level, rejected, err)
	})
	critical.use(t, false)
	level, err := s.priorityLevel(t.Context(), "workload-low")
	if err != nil || level.executing > (s.MaxRequestsInFlight+s.MaxMutatingRequestsInFlight)/seats {
		t.Errorf("got %+v, %v, want at most 15 executing lists of %d seats", level, err, seats)
	}
}

// listTakes reports whether a list of ConfigMaps takes a number of seats.
func (n *noisyAccount) listTakes(t *testing.T, seats int) (bool, string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	client, err := restclient.HTTPClientFor(n.config)
	if err != nil {
		return false, err.Error()
	}
	response, err := n.getList(ctx, client, "configmaps") // returns with the first bytes
	if err != nil {
		return false, err.Error()
	}
	defer response.Body.Close()
	dump, err := n.s.Client.Discovery().RESTClient().Get().
		AbsPath("/debug/api_priority_and_fairness/dump_requests").DoRaw(t.Context())
	if err != nil {
		return false, err.Error()
	}
	taken := seatsOf(string(dump), "service-accounts")
	return slices.Contains(taken, strconv.Itoa(seats)), fmt.Sprintf("status %d, seats %q", response.StatusCode, taken)
}

// seatsOf returns the seats of the requests that match a flow schema from a dump of requests.
func seatsOf(dump, schema string) (out []string) {
	column := -1
	for line := range strings.Lines(dump) {
		cells := strings.Split(strings.TrimSpace(line), ",")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		if column < 0 {
			for i, name := range cells {
				if name == "InitialSeats" {
					column = i
				}
			}
			continue
		}
		if len(cells) > column && cells[1] == schema {
			out = append(out, cells[column])
		}
	}
	return out
}

// startLists creates 10,000 pods and lists them 100 times at once, again and again until the end of the test.
func (n *noisyAccount) startLists(t *testing.T) {
	t.Helper()
	createPods(t, n.s, 10_000)
	client, err := restclient.HTTPClientFor(n.config)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for range 100 {
		all.Go(func() {
			for ctx.Err() == nil {
				response, err := n.getList(ctx, client, "pods")
				if err != nil {
					continue // canceled
				}
				_, _ = io.Copy(io.Discard, response.Body) // rejected lists are sent again
				_ = response.Body.Close()
			}
		})
	}
	t.Cleanup(func() { cancel(); all.Wait() })
}

// createPods creates pods of about the size that running pods have.
func createPods(t *testing.T, s *Server, count int) {
	t.Helper()
	var all sync.WaitGroup
	numbers := make(chan int)
	for range 8 {
		all.Go(func() {
			for i := range numbers {
				_, err := s.Client.CoreV1().Pods(metav1.NamespaceDefault).Create(t.Context(), &corev1.Pod{
					ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("p-%d", i),
						Annotations: map[string]string{"example.com/text": strings.Repeat("x", 1500)}},
					Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "example/web"}}},
				}, metav1.CreateOptions{})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	for i := range count {
		numbers <- i
	}
	close(numbers)
	all.Wait()
}

// maxListMemory is how much more memory 100 concurrent lists of 10,000 pods may use, in bytes, with that of the
// clients. The responses have 2.6 GB together.
const maxListMemory = 768 << 20

// TestFairnessBoundsMemory lists 10,000 pods 100 times at once. It runs only with BERTH_TORTURE.
func TestFairnessBoundsMemory(t *testing.T) {
	if os.Getenv("BERTH_TORTURE") == "" {
		t.Skip("creates 10,000 pods; set BERTH_TORTURE=1")
	}
	first := Start(t, withoutControllers)
	createPods(t, first, 10_000)
	first.Stop(t)
	s := Start(t, withoutControllers, func(c *control.Config) { c.DataDir = first.DataDir })
	s.waitForDefaultLevels(t)
	noisy := newNoisyAccount(t, s)
	client, err := restclient.HTTPClientFor(noisy.config)
	if err != nil {
		t.Fatal(err)
	}
	before := resetPeakMemory(t)
	var all sync.WaitGroup
	var complete atomic.Int64
	for range 100 {
		all.Go(func() {
			response, err := noisy.getList(t.Context(), client, "pods")
			if err != nil {
				t.Error(err)
				return
			}
			defer response.Body.Close()
			n, err := io.Copy(io.Discard, response.Body)
			if err == nil && response.StatusCode == http.StatusOK && n > 15<<20 {
				complete.Add(1)
			} else if response.StatusCode != http.StatusTooManyRequests {
				t.Errorf("list: status %d, %d bytes, %v", response.StatusCode, n, err)
			}
		})
	}
	all.Wait()
	after := memory(t, "VmHWM:")
	t.Logf("%d lists complete, %d MiB before, %d MiB at most", complete.Load(), before>>20, after>>20)
	if complete.Load() == 0 || after-before > maxListMemory {
		t.Errorf("%d lists complete, %d MiB more memory, want at most %d", complete.Load(), (after-before)>>20,
			maxListMemory>>20)
	}
}

// resetPeakMemory resets the peak of the resident memory of this process, and returns its current value.
func resetPeakMemory(t *testing.T) int64 {
	t.Helper()
	debug.FreeOSMemory() // the garbage of the writes
	if err := os.WriteFile("/proc/self/clear_refs", []byte("5"), 0o200); err != nil {
		t.Fatal(err)
	}
	return memory(t, "VmRSS:")
}

// memory returns a value of /proc/self/status in bytes.
func memory(t *testing.T, name string) int64 {
	t.Helper()
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		var kib int64
		if value, found := strings.CutPrefix(line, name); found {
			if _, err := fmt.Sscan(value, &kib); err != nil {
				t.Fatal(err)
			}
			return kib << 10
		}
	}
	t.Fatalf("no %s in /proc/self/status", name)
	return 0
}
