package hosts

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// command runs a program and returns its standard output.
func command(name string, args ...string) (string, error) {
	cmd := exec.Command(name, args...)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, strings.TrimSpace(errs.String()))
	}
	return string(out), nil
}

// makeBridge creates the bridge before the first pod does, to give the host a non-loopback address
// from the start.
func (r *record) makeBridge() error {
	if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o644); err != nil {
		return err
	}
	for _, args := range [][]string{
		{"link", "add", r.bridge(), "type", "bridge"},
		{"addr", "add", fmt.Sprintf("%s/%d", r.gateway(), r.PodCIDR.Bits()), "dev", r.bridge()},
		{"link", "set", r.bridge(), "up"},
	} {
		if _, err := command("ip", args...); err != nil {
			return err
		}
	}
	return nil
}

// links lists the host's bridge and its ports.
func (r *record) links() []string {
	out := []string{}
	ports, _ := filepath.Glob(filepath.Join("/sys/class/net", r.bridge(), "brif", "*"))
	for _, p := range ports {
		out = append(out, filepath.Base(p))
	}
	if _, err := os.Stat(filepath.Join("/sys/class/net", r.bridge())); err == nil {
		out = append(out, r.bridge())
	}
	return out
}

func (r *record) removeLinks() error {
	var errs error
	for _, l := range r.links() {
		// A port disappears with its network namespace, possibly at this moment.
		if _, err := command("ip", "link", "del", l); err != nil {
			if _, errStat := os.Stat("/sys/class/net/" + l); errStat == nil {
				errs = errors.Join(errs, err)
			}
		}
	}
	return errs
}

// rules lists the nat rules that the CNI plugins created for the host's pods, and the per-pod
// chains that these rules fill or jump to. The plugins name network and sandbox in the comment of
// every rule except those inside the chain of a host port.
func (r *record) rules() (rules, chains []string) {
	out, err := command("iptables-save", "-t", "nat")
	if err != nil {
		return nil, nil
	}
	mark := fmt.Sprintf(`name: \"%s\"`, r.network())
	listed := map[string]bool{}
	for line := range strings.Lines(out) {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, "-A ") || !strings.Contains(line, mark) {
			continue
		}
		rules = append(rules, line)
		f := strings.Fields(line)
		for _, chain := range []string{f[1], f[len(f)-1]} {
			if isPodChain(chain) && !listed[chain] {
				listed[chain] = true
				chains = append(chains, chain)
			}
		}
	}
	return rules, chains
}

// isPodChain reports whether a chain belongs to one sandbox instead of being shared by all.
func isPodChain(chain string) bool {
	return !isSharedChain(chain) && strings.HasPrefix(chain, "CNI-") && len(chain) > 10
}

func isSharedChain(chain string) bool {
	return strings.HasPrefix(chain, "CNI-HOSTPORT-")
}

func (r *record) removeRules() error {
	rules, chains := r.rules()
	if len(rules) == 0 {
		return nil
	}
	var b strings.Builder
	b.WriteString("*nat\n")
	inside := func(rule string) bool {
		return isPodChain(strings.Fields(rule)[1])
	}
	for _, c := range chains {
		fmt.Fprintf(&b, "-F %s\n", c)
	}
	for _, rule := range rules {
		if !inside(rule) {
			fmt.Fprintf(&b, "-D %s\n", strings.TrimPrefix(rule, "-A "))
		}
	}
	for _, c := range chains {
		fmt.Fprintf(&b, "-X %s\n", c)
	}
	b.WriteString("COMMIT\n")
	return iptablesRestore(b.String())
}

func iptablesRestore(text string) error {
	cmd := exec.Command("iptables-restore", "--noflush", "--wait")
	cmd.Stdin = strings.NewReader(text)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("iptables-restore: %w: %s\n%s", err, out, text)
	}
	return nil
}

// removeSharedChains removes the chains that the portmap plugin creates once per machine. Only the
// last host calls it, and it does nothing while a rule jumps through them.
func removeSharedChains() error {
	out, err := command("iptables-save", "-t", "nat")
	if err != nil || !strings.Contains(out, "CNI-HOSTPORT-") {
		return err
	}
	var flush, unlink, remove strings.Builder
	for line := range strings.Lines(out) {
		line = strings.TrimSpace(line)
		f := strings.Fields(line)
		switch {
		case strings.HasPrefix(line, ":CNI-HOSTPORT-"):
			chain := strings.TrimPrefix(f[0], ":")
			fmt.Fprintf(&flush, "-F %s\n", chain)
			fmt.Fprintf(&remove, "-X %s\n", chain)
		case strings.HasPrefix(line, "-A CNI-HOSTPORT-DNAT") && strings.Contains(line, "CNI-DN-"):
			return nil // host port of another runtime
		case strings.HasPrefix(line, "-A ") && !strings.HasPrefix(line, "-A CNI-") && isSharedChain(f[len(f)-1]):
			fmt.Fprintf(&unlink, "-D %s\n", strings.TrimPrefix(line, "-A "))
		}
	}
	return iptablesRestore("*nat\n" + unlink.String() + flush.String() + remove.String() + "COMMIT\n")
}

// removeEmptyChains removes per-pod chains that a plugin left when it was killed between its steps.
// They are empty and no rule jumps to them, therefore their owner is unknown. Only the last host
// calls it.
func removeEmptyChains() error {
	out, err := command("iptables-save", "-t", "nat")
	if err != nil {
		return err
	}
	empty, used := []string{}, map[string]bool{}
	for line := range strings.Lines(out) {
		f := strings.Fields(line)
		switch {
		case strings.HasPrefix(line, ":") && isPodChain(f[0][1:]):
			empty = append(empty, f[0][1:])
		case strings.HasPrefix(line, "-A "):
			used[f[1]], used[f[len(f)-1]] = true, true
		}
	}
	var b strings.Builder
	for _, chain := range empty {
		if !used[chain] {
			fmt.Fprintf(&b, "-X %s\n", chain)
		}
	}
	if b.Len() == 0 {
		return nil
	}
	return iptablesRestore("*nat\n" + b.String() + "COMMIT\n")
}

// cniCache lists libcni's cached results of attachments to the host's network and of the loopbacks
// of its sandboxes, which name the path of the namespace.
func (r *record) cniCache() []string {
	out, _ := filepath.Glob(filepath.Join("/var/lib/cni/results", r.network()+"-*"))
	lo, _ := filepath.Glob("/var/lib/cni/results/cni-loopback-*")
	for _, f := range lo {
		if text, err := os.ReadFile(f); err == nil && strings.Contains(string(text), `"`+r.state()+"/") {
			out = append(out, f)
		}
	}
	return out
}

// addressesInUse lists the addresses that host-local has allocated.
func (r *record) addressesInUse() []string {
	files, _ := filepath.Glob(filepath.Join(r.addresses(), r.network(), "*"))
	var out []string
	for _, f := range files {
		if name := filepath.Base(f); name != "lock" && !strings.HasPrefix(name, "last_reserved_ip") {
			out = append(out, name)
		}
	}
	return out
}

// FreePort returns an unused port of 127.0.0.1 below the range that the kernel uses for outgoing
// connections, which could otherwise take it at any moment.
func FreePort() (int, error) {
	const low, high, tries = 10000, 30000, 100
	var last error
	for range tries {
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", low+rand.IntN(high-low)))
		if err != nil {
			last = err // the port is in use
			continue
		}
		at, ok := l.Addr().(*net.TCPAddr)
		if err := l.Close(); err != nil || !ok {
			return 0, errors.Join(err, fmt.Errorf("listen on %s", l.Addr()))
		}
		return at.Port, nil
	}
	return 0, fmt.Errorf("no free port in %d tries: %w", tries, last)
}
