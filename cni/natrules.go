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

// The bridge and portmap plugins create rules in the iptables nat table: one or two chains for each
// container, with the network and the container in a comment. If they are interrupted, some rules
// stay, because a later DEL finds the addresses by the link, which does not exist any more.

const iptablesTimeout = 10 * time.Second

// families returns the programs for IPv4 and IPv6: one to read the rules, one to change them.
func families() [][2]string {
	return [][2]string{{"iptables-save", "iptables-restore"}, {"ip6tables-save", "ip6tables-restore"}}
}

// savedRules returns the rules of the nat table. It is empty if there are none or if the program
// does not exist.
func savedRules(ctx context.Context, program string) string {
	path, err := exec.LookPath(program)
	if err != nil {
		return ""
	}
	ctx, cancel := context.WithTimeout(ctx, iptablesTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, "-t", "nat")
	cmd.WaitDelay = time.Second
	out, err := cmd.Output()
	if err != nil {
		return ""
	}
	return string(out)
}

// natTables returns the rules of each address family in the order of families.
func natTables(ctx context.Context) (out []string) {
	for _, f := range families() {
		out = append(out, savedRules(ctx, f[0]))
	}
	return out
}

// containersWithRules lists the containers of a network that have rules.
func containersWithRules(tables []string, network string) (ids []string) {
	for _, saved := range tables {
		for line := range strings.Lines(saved) {
			if id := containerOfRule(line, network); id != "" {
				ids = append(ids, id)
			}
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// emptyChains lists the per-container chains without rules and without references, by address
// family. A plugin that is killed between two steps leaves one. Its name is a hash, so its
// container is unknown.
func emptyChains(tables []string) (out []Leak) {
	for i, saved := range tables {
		for _, chain := range emptyChainNames(saved) {
			out = append(out, Leak{Kind: Chain, Chain: chain, restoreProgram: families()[i][1]})
		}
	}
	return out
}

func emptyChainNames(saved string) (out []string) {
	used := map[string]bool{}
	for line := range strings.Lines(saved) {
		switch f := strings.Fields(line); {
		case len(f) > 1 && f[0] == "-A":
			used[f[1]], used[jumpTarget(f)] = true, true
		case len(f) > 0 && strings.HasPrefix(f[0], ":") && isContainerChain(f[0][1:]):
			out = append(out, f[0][1:])
		}
	}
	return slices.DeleteFunc(out, func(chain string) bool { return used[chain] })
}

// deleteChain deletes a chain. The kernel rejects this if the chain now has rules or references.
func deleteChain(ctx context.Context, program, chain string) error {
	return iptablesRestore(ctx, program, "*nat\n-X "+chain+"\nCOMMIT\n")
}

// containerOfRule returns the container of the network that a rule's comment names. It is empty if
// the rule belongs to no container.
func containerOfRule(line, network string) string {
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

// deleteRules deletes the rules of one container of a network and its chains in one transaction.
func deleteRules(ctx context.Context, network, id string) error {
	var errs []error
	for _, f := range families() {
		if text := deletionScript(savedRules(ctx, f[0]), network, id); text != "" {
			errs = append(errs, iptablesRestore(ctx, f[1], text))
		}
	}
	return errors.Join(errs...)
}

// deletionScript returns the iptables-restore input that deletes the rules of a container. It is
// empty if there are none. A chain belongs to the container if its name is a hash and if all its
// rules, or the rule that jumps to it, belong to the container.
func deletionScript(saved, network, id string) string {
	var single, chains []string
	others := map[string]bool{} // chains with rules or references of other containers
	for line := range strings.Lines(saved) {
		f := strings.Fields(line)
		if len(f) < 2 || f[0] != "-A" {
			continue
		}
		from, to := f[1], jumpTarget(f)
		if containerOfRule(line, network) != id {
			// rules in the chain of a host port have no comment
			if strings.Contains(line, `id: \"`) || !isContainerChain(from) {
				others[from] = true
			}
			others[to] = true
			continue
		}
		for _, chain := range []string{from, to} {
			if isContainerChain(chain) && !slices.Contains(chains, chain) {
				chains = append(chains, chain)
			}
		}
		if !isContainerChain(from) {
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

// jumpTarget returns the chain or verdict of a rule.
func jumpTarget(fields []string) string {
	for i := len(fields) - 2; i > 0; i-- {
		if fields[i] == "-j" || fields[i] == "-g" {
			return fields[i+1]
		}
	}
	return ""
}

// isContainerChain reports whether a chain name has the format that the plugins use for a single
// container: CNI-, CNI-DN- or CNI-SN- and a hash, 28 characters in total.
func isContainerChain(chain string) bool {
	hash, ok := strings.CutPrefix(chain, "CNI-")
	hash = strings.TrimPrefix(strings.TrimPrefix(hash, "DN-"), "SN-")
	return ok && len(chain) == 28 && strings.Trim(hash, "0123456789abcdef") == ""
}

func iptablesRestore(ctx context.Context, program, text string) error {
	ctx, cancel := context.WithTimeout(ctx, iptablesTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, "--noflush", "--wait")
	cmd.Stdin, cmd.WaitDelay = strings.NewReader(text), time.Second
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w: %s", program, err, strings.TrimSpace(stderr.String()))
	}
	return nil
}
