package differential

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
)

// Options select the scripts.
type Options struct {
	First, Count uint64 // seeds
	Parallel     int    // scripts at once
	Report       io.Writer
}

// restTimeout is how long a script waits for both control planes to be equal and at rest after an edit.
const restTimeout = 90 * time.Second

// Summary counts what was compared.
type Summary struct {
	Different int // scripts that ended with a difference
	Edits     int // edits after which the objects were equal
	Objects   int // compared objects of one side, over all edits
	// Late are the scripts and edits after which kube-controller-manager reached the same state only when its DaemonSet
	// was touched.
	Late []string
}

// Run plays the scripts to the control planes at a and b and reports each difference.
func Run(ctx context.Context, a, b *rest.Config, o Options) (s Summary, err error) {
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	var planes [2]*plane
	for i, c := range []*rest.Config{a, b} {
		if planes[i], err = openPlane(ctx, []string{"-", "+"}[i], c); err != nil {
			return s, err
		}
		if err := planes[i].start(ctx); err != nil {
			return s, err
		}
		running.Go(func() { planes[i].nodes.Run(ctx) })
	}
	seeds := make(chan uint64)
	var mu sync.Mutex
	var wg sync.WaitGroup
	for range o.Parallel {
		wg.Go(func() {
			for seed := range seeds {
				report, one, scriptErr := play(ctx, planes, seed)
				mu.Lock()
				s.Edits, s.Objects, s.Late = s.Edits+one.Edits, s.Objects+one.Objects, append(s.Late, one.Late...)
				if report != "" {
					s.Different++
					fmt.Fprintln(o.Report, report)
				}
				err = errors.Join(err, scriptErr)
				mu.Unlock()
			}
		})
	}
	for i := range o.Count {
		seeds <- o.First + i
	}
	close(seeds)
	wg.Wait()
	return s, err
}

// play plays one script and returns a description of the first difference, or "".
func play(ctx context.Context, planes [2]*plane, seed uint64) (report string, s Summary, err error) {
	namespace := fmt.Sprint("script-", seed)
	for _, p := range planes {
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}
		if _, err := p.client.CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{}); err != nil {
			return "", s, err
		}
		defer func() {
			err = errors.Join(err, p.client.CoreV1().Namespaces().Delete(context.WithoutCancel(ctx), namespace,
				metav1.DeleteOptions{}))
		}()
	}
	for _, p := range planes {
		if err := p.waitForServiceAccount(ctx, namespace); err != nil {
			return "", s, err
		}
	}
	var log strings.Builder
	fmt.Fprintf(&log, "seed %d:\n", seed)
	edits, rest := script(seed)
	for _, e := range edits {
		fmt.Fprintf(&log, "  %s\n", e.what)
		compareOrder(planes, namespace) // forgets late steps of the last edit
		if err := both(ctx, planes, namespace, e); err != nil {
			return "", s, fmt.Errorf("%s%w", &log, err)
		}
		objects, diff, err := settle(ctx, planes, namespace, rest)
		if err != nil {
			return "", s, fmt.Errorf("%s%w", &log, err)
		}
		if diff != "" {
			if late, err := isLate(ctx, planes, namespace, rest); err != nil || !late {
				return log.String() + diff, s, err
			}
			s.Late = append(s.Late, fmt.Sprintf("seed %d: %s", seed, e.what))
		}
		if diff := compareOrder(planes, namespace); diff != "" {
			return log.String() + diff, s, nil
		}
		s.Edits, s.Objects = s.Edits+1, s.Objects+objects
	}
	return "", s, nil
}

// isLate reports whether kube-controller-manager reaches the state of the other side after an annotation of its
// DaemonSet was changed. It misses the end of minReadySeconds if an earlier timer of the set is running: the queue
// keeps one time for each set.
func isLate(ctx context.Context, planes [2]*plane, namespace string, rest time.Duration) (bool, error) {
	touched := false
	touch := daemonSets.change("touch", func(d *appsv1.DaemonSet) {
		d.Annotations[touchAnnotation], touched = time.Now().Format(time.RFC3339Nano), d.Spec.MinReadySeconds > 0
	})
	if err := touch.apply(ctx, planes[0], namespace); err != nil || !touched {
		return false, err
	}
	_, diff, err := settle(ctx, planes, namespace, rest)
	return err == nil && diff == "", err
}

// both applies an edit to both control planes.
func both(ctx context.Context, planes [2]*plane, namespace string, e edit) error {
	var errs [2]error
	for i, p := range planes {
		p.touch(namespace)
		errs[i] = e.apply(ctx, p, namespace)
	}
	if (errs[0] == nil) != (errs[1] == nil) {
		return fmt.Errorf("only one server refuses the edit: %w", errors.Join(errs[:]...))
	}
	return nil // both refuse it, or both accept it
}

// settle waits until both namespaces are equal and nothing has changed for the time rest. It returns the number of
// objects and the difference if it lasts.
func settle(ctx context.Context, planes [2]*plane, namespace string, rest time.Duration) (n int, diff string,
	err error) {
	atRest := func(d time.Duration) bool { return planes[0].atRest(namespace, d) && planes[1].atRest(namespace, d) }
	err = wait.PollUntilContextTimeout(ctx, 200*time.Millisecond, restTimeout, true,
		func(context.Context) (bool, error) {
			if !atRest(rest) {
				return false, nil
			}
			var sides [2][]string
			for i, p := range planes {
				objects, err := p.objects(namespace)
				if err != nil {
					return false, err
				}
				if sides[i], err = normalize(objects); err != nil {
					return false, err
				}
			}
			n, diff = len(sides[0]), compare(sides[0], sides[1])
			return diff == "" || atRest(max(stableTime, 2*rest)), nil
		})
	if wait.Interrupted(err) && ctx.Err() == nil {
		return n, diff + "objects still change\n", nil
	}
	return n, diff, err
}
