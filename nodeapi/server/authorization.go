package server

import (
	"net/http"
	"slices"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
)

// AuthorizationMode selects how authenticated users are authorized.
type AuthorizationMode int

const (
	// ModeWebhook authorizes with subject access reviews.
	ModeWebhook AuthorizationMode = iota
	// ModeAlwaysAllow allows everything to every authenticated user.
	ModeAlwaysAllow
	// ModeMastersOnly allows everything to members of system:masters and nothing to others, for
	// a node without an API server.
	ModeMastersOnly
)

// ModeFor returns the mode of a node. A node without an API server cannot ask it for reviews.
func ModeFor(alwaysAllow, standalone bool) AuthorizationMode {
	switch {
	case alwaysAllow:
		return ModeAlwaysAllow
	case standalone:
		return ModeMastersOnly
	}
	return ModeWebhook
}

// masters is the group of cluster administrators.
const masters = "system:masters"

// permission is what a request requires: one of the subresources of the node, the most specific
// first.
type permission struct {
	subresources []string
	alwaysCreate bool // the verb is always create
}

// The permissions that the kubelet requires.
var (
	permProxy      = permission{subresources: []string{"proxy"}}
	permPods       = permission{subresources: []string{"pods", "proxy"}}
	permHealth     = permission{subresources: []string{"healthz", "proxy"}}
	permConfig     = permission{subresources: []string{"configz", "proxy"}}
	permMetrics    = permission{subresources: []string{"metrics"}}
	permStats      = permission{subresources: []string{"stats"}}
	permLogs       = permission{subresources: []string{"log"}}
	permCheckpoint = permission{subresources: []string{"checkpoint"}}
	// permEnter is for access to a container or its network. A WebSocket request is a GET, and
	// read permission must not be sufficient for it.
	permEnter = permission{subresources: []string{"proxy"}, alwaysCreate: true}
)

func (r permission) verb(method string) string {
	if r.alwaysCreate {
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

// reviewSpecs are the access reviews of which at least one must be positive.
func (r permission) reviewSpecs(node, method string, u user) []authorizationv1.SubjectAccessReviewSpec {
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

// user is an authenticated user.
type user struct {
	name, uid string
	groups    []string
	extra     map[string]authorizationv1.ExtraValue
}

func (u user) in(group string) bool { return slices.Contains(u.groups, group) }

// key identifies a user with all attributes that affect authorization.
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
