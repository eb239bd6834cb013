package policy

import (
	"bufio"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/services/policy/selection"
)

// killedEnv makes TestKilledEnforcer run the process that is killed. Its value is the seed.
const killedEnv = "BERTH_TEST_KILLED_ENFORCER"

// churn changes policies and pods with numbers from 4 at random. The first pod always denies
// ingress.
func (n *testNode) churn(s *Store, rng *rand.Rand) {
	number := 4 + rng.IntN(6)
	switch rng.IntN(4) {
	case 0:
		s.SetLocalPod(testPod("n1", number, string(rune('a'+rng.IntN(3)))), podAddresses(number))
	case 1:
		for _, app := range []string{"a", "b", "c"} {
			s.DeleteLocalPod(testPod("n1", number, app).UID)
		}
	case 2:
		n.setPolicy(s, "n1", fmt.Sprintf("policy-%d", rng.IntN(5)), networkingv1.NetworkPolicySpec{
			PodSelector: *app(string(rune('a' + rng.IntN(3)))),
			Ingress: []networkingv1.NetworkPolicyIngressRule{{
				From: []networkingv1.NetworkPolicyPeer{{PodSelector: app(string(rune('a' + rng.IntN(3))))}}}},
		})
	case 3:
		s.DeletePolicy(types.NamespacedName{Namespace: "n1", Name: fmt.Sprintf("policy-%d", rng.IntN(5))})
	}
}

// killedStore returns the input of the process that is killed, before its changes.
func (n *testNode) killedStore() *Store {
	s := newStore()
	s.SetLocalPod(testPod("n1", 2, "first"), podAddresses(2))
	n.setPolicy(s, "n1", "first", networkingv1.NetworkPolicySpec{PodSelector: *app("first")})
	return s
}

// runUntilKilled changes the rules without end and writes a line after each change.
func runUntilKilled(t *testing.T, seed string) {
	n := &testNode{host: &host{t: t, ns: netns.NsHandle(3)}} // ExtraFiles
	s := n.killedStore()
	e := New(Options{Store: s, NetNS: n.ns, Log: slog.New(slog.DiscardHandler)})
	var number uint64
	_, err := fmt.Sscan(seed, &number)
	n.must(err)
	rng := rand.New(rand.NewPCG(number, 3))
	for {
		n.churn(s, rng)
		n.must(e.Sync())
		fmt.Println("synced")
	}
}

// TestKilledEnforcer kills a process with an Enforcer during changes, again and again. At any
// time, the first pod is cut off, its established connection works, and the next Enforcer completes the
// rules.
func TestKilledEnforcer(t *testing.T) {
	if seed := os.Getenv(killedEnv); seed != "" {
		runUntilKilled(t, seed)
	}
	t.Parallel()
	n := newTestNode(t)
	n.addPod(2)
	pod4, pod6 := podAddresses(2)[0], podAddresses(2)[1]
	before := newStore() // without rules, the kernel would not track the connections
	n.setPolicy(before, "n2", "other", denyIngress)
	before.SetLocalPod(testPod("n1", 2, "first"), podAddresses(2))
	n.must(n.enforcer(before).Sync())
	works := []func() error{n.connection(outside4, pod4), n.connection(outside6, pod6)}
	n.must(n.enforcer(n.killedStore()).Sync())
	rng := rand.New(rand.NewPCG(1, 1))
	for round := range 25 {
		cmd := exec.Command(os.Args[0], "-test.run=^TestKilledEnforcer$")
		cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d", killedEnv, round))
		fd, err := unix.Dup(int(n.ns))
		n.must(err)
		ns := os.NewFile(uintptr(fd), "netns")
		cmd.ExtraFiles = []*os.File{ns}
		out, err := cmd.StdoutPipe()
		n.must(err)
		var stderr strings.Builder
		cmd.Stderr = &stderr
		n.must(cmd.Start())
		n.must(ns.Close())
		lines := bufio.NewScanner(out)
		for range 1 + rng.IntN(8) {
			if !lines.Scan() || lines.Text() != "synced" {
				t.Fatalf("round %d: process ended: %s %s", round, lines.Text(), &stderr)
			}
		}
		n.must(cmd.Process.Kill())
		_, _ = io.Copy(io.Discard, out)
		_ = cmd.Wait() // killed
		n.expect("after a kill", outside4, pod4, selection.TCP, 80, false)
		for _, works := range works {
			n.must(works())
		}
	}
	s := n.killedStore()
	e := n.enforcer(s)
	n.must(e.Sync())
	if difference, err := e.kernel.differs(s.take(true).whole); difference != "" || err != nil {
		t.Errorf("after the last restart: rules differ: %s, error %v", difference, err)
	}
}
