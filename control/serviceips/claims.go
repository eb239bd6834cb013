package serviceips

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apimachinery/pkg/types"
)

// errTaken says that somebody else holds it.
var errTaken = errors.New("is already allocated")

// claimsPrefix is where claims are in the store, beside the objects.
const claimsPrefix = "/registry/berth/claims/"

// A name is what can be claimed: "addresses/10.43.0.7", "ports/30080".
type name string

func addressName(a netip.Addr) name { return name("addresses/" + a.String()) }
func portName(n int32) name         { return name("ports/" + strconv.Itoa(int(n))) }

// claim is one name with its owner and the revision of the store at which it was
// claimed last.
type claim struct {
	name     name
	owner    types.UID
	service  string // "namespace/name", for messages
	revision int64
	// again: the owner had it already, by another request that may still be under way.
	again bool
}

// claims are those in the store.
type claims struct{ client *clientv3.Client }

// take claims a name; errTaken if another service holds it. An owner that holds
// it already claims it anew, so that giving back the older claim does nothing: of
// two requests that change one service at once, the one that is refused takes
// nothing from the other.
func (c claims) take(ctx context.Context, n name, owner types.UID, service string) (claim, error) {
	key := claimsPrefix + string(n)
	for {
		got, err := c.client.Get(ctx, key)
		if err != nil {
			return claim{}, fmt.Errorf("claim %s: %w", n, err)
		}
		last := int64(0)
		if len(got.Kvs) > 0 {
			last = got.Kvs[0].ModRevision
			if has, _, _ := strings.Cut(string(got.Kvs[0].Value), " "); has != string(owner) {
				return claim{}, errTaken
			}
		}
		put, err := c.client.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(key), "=", last)).
			Then(clientv3.OpPut(key, string(owner)+" "+service)).Commit()
		if err != nil {
			return claim{}, fmt.Errorf("claim %s: %w", n, err)
		}
		if put.Succeeded {
			return claim{n, owner, service, put.Header.Revision, last != 0}, nil
		}
	}
}

// look finds a claim; nil: it is free.
func (c claims) look(ctx context.Context, n name) (*claim, error) {
	got, err := c.client.Get(ctx, claimsPrefix+string(n))
	if err != nil || len(got.Kvs) == 0 {
		return nil, err
	}
	owner, service, _ := strings.Cut(string(got.Kvs[0].Value), " ")
	return &claim{name: n, owner: types.UID(owner), service: service, revision: got.Kvs[0].ModRevision}, nil
}

// give ends a claim, unless it was made anew since.
func (c claims) give(ctx context.Context, old claim) error {
	key := claimsPrefix + string(old.name)
	_, err := c.client.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(key), "=", old.revision)).Then(clientv3.OpDelete(key)).Commit()
	if err != nil {
		return fmt.Errorf("give %s back: %w", old.name, err)
	}
	return nil
}

// all lists the claims.
func (c claims) all(ctx context.Context) (map[name]claim, error) {
	got, err := c.client.Get(ctx, claimsPrefix, clientv3.WithPrefix())
	if err != nil {
		return nil, fmt.Errorf("list claims: %w", err)
	}
	out := make(map[name]claim, len(got.Kvs))
	for _, kv := range got.Kvs {
		owner, service, _ := strings.Cut(string(kv.Value), " ")
		n := name(strings.TrimPrefix(string(kv.Key), claimsPrefix))
		out[n] = claim{name: n, owner: types.UID(owner), service: service, revision: kv.ModRevision}
	}
	return out, nil
}
