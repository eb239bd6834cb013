package server

import (
	"net/http"
	"slices"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
)

// AuthorizationMode says who decides what a known user may do.
type AuthorizationMode int

const (
	// ModeWebhook has Reviews decide.
	ModeWebhook AuthorizationMode = iota
	// ModeAlwaysAllow lets every known user do everything.
	ModeAlwaysAllow
	// ModeMastersOnly lets the members of system:masters do everything and others nothing:
	// for a node without a server that could be asked.
	ModeMastersOnly
)

// masters is the group that may do everything in any cluster.
const masters = "system:masters"

// right is what a caller must be allowed to do on the node: one of the
// subresources, the narrowest first.
type right struct {
	subresources []string
	enter        bool // always the verb create
}

// What the kubelet asks for.
var (
	toProxy   = right{subresources: []string{"proxy"}}
	toPods    = right{subresources: []string{"pods", "proxy"}}
	toHealth  = right{subresources: []string{"healthz", "proxy"}}
	toConfig  = right{subresources: []string{"configz", "proxy"}}
	toMetrics = right{subresources: []string{"metrics"}}
	toStats   = right{subresources: []string{"stats"}}
	toLogs    = right{subresources: []string{"log"}}
	// toEnter reaches into a container or its network. A WebSocket begins as a GET,
	// and who may only read must not get in by that.
	toEnter = right{subresources: []string{"proxy"}, enter: true}
)

func (r right) verb(method string) string {
	if r.enter {
		return "create"
	}
	switch method {
	case http.MethodPost:
		return "create"
	case http.MethodPut:
		return "update"
	case http.MethodPatch:
		return "patch"
	case http.MethodDelete:
		return "delete"
	}
	return "get"
}

// questions are the reviews one of which must come out well.
func (r right) questions(node, method string, u user) []authorizationv1.SubjectAccessReviewSpec {
	out := make([]authorizationv1.SubjectAccessReviewSpec, 0, len(r.subresources))
	for _, sub := range r.subresources {
		out = append(out, authorizationv1.SubjectAccessReviewSpec{
			User: u.name, UID: u.uid, Groups: u.groups, Extra: u.extra,
			ResourceAttributes: &authorizationv1.ResourceAttributes{
				Verb: r.verb(method), Version: "v1", Resource: "nodes", Subresource: sub, Name: node,
			},
		})
	}
	return out
}

// user is who asks.
type user struct {
	name, uid string
	groups    []string
	extra     map[string]authorizationv1.ExtraValue
}

func (u user) in(group string) bool { return slices.Contains(u.groups, group) }

// key tells users apart that may have different rights.
func (u user) key() string {
	var b strings.Builder
	for _, s := range append([]string{u.name, u.uid}, slices.Sorted(slices.Values(u.groups))...) {
		b.WriteString(s)
		b.WriteByte(0)
	}
	for _, k := range sortedKeys(u.extra) {
		b.WriteString(k)
		for _, v := range u.extra[k] {
			b.WriteByte(1)
			b.WriteString(v)
		}
		b.WriteByte(0)
	}
	return b.String()
}
