package cni

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"time"
)

// The bridge and portmap plugins make rules in iptables' table nat, a chain or
// two per container, and name network and container in a comment. Cut off, they
// leave some: their next DEL finds the addresses that the rules were for by the
// link, which is gone.

const rulesBound = 10 * time.Second

// families are the programs for IPv4 and IPv6: one to read, one to change rules.
func families() [][2]string {
	return [][2]string{{"iptables-save", "iptables-restore"}, {"ip6tables-save", "ip6tables-restore"}}
}

// savedRules are the rules of table nat; empty: there are none, or no program to
// read them.
func savedRules(ctx context.Context, program string) string {
	path, err := exec.LookPath(program)
	if err != nil {
		return ""
	}
	ctx, cancel := context.WithTimeout(ctx, rulesBound)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, "-t", "nat")
	cmd.WaitDelay = time.Second
	out, err := cmd.Output()
	if err != nil {
		return ""
	}
	return string(out)
}

// tables are the rules of each family, in the order of families.
func tables(ctx context.Context) (out []string) {
	for _, f := range families() {
		out = append(out, savedRules(ctx, f[0]))
	}
	return out
}

// ruled lists the containers for which there are rules of a network.
func ruled(tables []string, network string) (ids []string) {
	for _, saved := range tables {
		for line := range strings.Lines(saved) {
			if id := ruleOf(line, network); id != "" {
				ids = append(ids, id)
			}
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// emptyChains lists the chains of single containers that have no rule and to
// which none leads, by family. A plugin that is killed between its steps leaves
// one; its name is a hash, so that nobody can tell whose it was.
func emptyChains(tables []string) (out []Leak) {
	for i, saved := range tables {
		for _, chain := range empty(saved) {
			out = append(out, Leak{Kind: Chain, Chain: chain, restoreProgram: families()[i][1]})
		}
	}
	return out
}

func empty(saved string) (out []string) {
	used := map[string]bool{}
	for line := range strings.Lines(saved) {
		switch f := strings.Fields(line); {
		case len(f) > 1 && f[0] == "-A":
			used[f[1]], used[jump(f)] = true, true
		case len(f) > 0 && strings.HasPrefix(f[0], ":") && perPod(f[0][1:]):
			out = append(out, f[0][1:])
		}
	}
	return slices.DeleteFunc(out, func(chain string) bool { return used[chain] })
}

// dropChain removes a chain; the kernel refuses if it has got rules or is led to
// since.
func dropChain(ctx context.Context, program, chain string) error {
	return restore(ctx, program, "*nat\n-X "+chain+"\nCOMMIT\n")
}

// ruleOf reads from a rule's comment the container of the network that it is
// for; empty: it is none such.
func ruleOf(line, network string) string {
	if network == "" || !strings.HasPrefix(line, "-A ") {
		return ""
	}
	_, rest, ok := strings.Cut(line, fmt.Sprintf(`name: \"%s\" id: \"`, network))
	id, _, end := strings.Cut(rest, `\"`)
	if !ok || !end || !isID(id) {
		return ""
	}
	return id
}

// dropRules removes the rules of one container of a network and the chains that
// are its own, all at once or nothing.
func dropRules(ctx context.Context, network, id string) error {
	var errs []error
	for _, f := range families() {
		if text := dropping(savedRules(ctx, f[0]), network, id); text != "" {
			errs = append(errs, restore(ctx, f[1], text))
		}
	}
	return errors.Join(errs...)
}

// dropping is what to tell iptables-restore to remove the rules of a container;
// empty: there are none. A chain is the container's own if its name is a hash
// and all its rules, or the rule that leads to it, are the container's.
func dropping(saved, network, id string) string {
	var single, chains []string
	others := map[string]bool{} // chains with rules of, or led to by, others
	for line := range strings.Lines(saved) {
		f := strings.Fields(line)
		if len(f) < 2 || f[0] != "-A" {
			continue
		}
		from, to := f[1], jump(f)
		if ruleOf(line, network) != id {
			if strings.Contains(line, `id: \"`) || !perPod(from) { // rules in a host port's chain have no comment
				others[from] = true
			}
			others[to] = true
			continue
		}
		for _, chain := range []string{from, to} {
			if perPod(chain) && !slices.Contains(chains, chain) {
				chains = append(chains, chain)
			}
		}
		if !perPod(from) {
			single = append(single, "-D "+strings.TrimPrefix(strings.TrimSpace(line), "-A "))
		}
	}
	chains = slices.DeleteFunc(chains, func(chain string) bool { return others[chain] })
	if len(single)+len(chains) == 0 {
		return ""
	}
	var b strings.Builder
	b.WriteString("*nat\n")
	for _, line := range single {
		b.WriteString(line + "\n")
	}
	for _, verb := range []string{"-F ", "-X "} {
		for _, chain := range chains {
			b.WriteString(verb + chain + "\n")
		}
	}
	b.WriteString("COMMIT\n")
	return b.String()
}

// jump is the chain or verdict that a rule leads to.
func jump(fields []string) string {
	for i := len(fields) - 2; i > 0; i-- {
		if fields[i] == "-j" || fields[i] == "-g" {
			return fields[i+1]
		}
	}
	return ""
}

// perPod reports whether the name of a chain is one that the plugins make up for
// a single container: CNI-, CNI-DN- or CNI-SN- and a hash, 28 characters long.
func perPod(chain string) bool {
	hash, ok := strings.CutPrefix(chain, "CNI-")
	hash = strings.TrimPrefix(strings.TrimPrefix(hash, "DN-"), "SN-")
	return ok && len(chain) == 28 && strings.Trim(hash, "0123456789abcdef") == ""
}

func restore(ctx context.Context, program, text string) error {
	ctx, cancel := context.WithTimeout(ctx, rulesBound)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, "--noflush", "--wait")
	cmd.Stdin, cmd.WaitDelay = strings.NewReader(text), time.Second
	var said bytes.Buffer
	cmd.Stderr = &said
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w: %s", program, err, strings.TrimSpace(said.String()))
	}
	return nil
}
