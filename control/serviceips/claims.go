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

// errAllocated says that somebody else holds it.
var errAllocated = errors.New("is already allocated")

// claimsPrefix is where claims are in the store, beside the objects.
const claimsPrefix = "/registry/berth/claims/"

// A name is what can be claimed: "addresses/10.43.0.7", "ports/30080".
type claimKey string

func addressKey(a netip.Addr) claimKey { return claimKey("addresses/" + a.String()) }
func portKey(n int32) claimKey         { return claimKey("ports/" + strconv.Itoa(int(n))) }

// claim is one name with its owner and the revision of the store at which it was
// claimed last.
type claim struct {
	key      claimKey
	owner    types.UID
	service  string // "namespace/name", for messages
	revision int64
	// renewed: the owner had it already, by another request that may still be under way.
	renewed bool
}

// claimStore are those in the store.
type claimStore struct{ client *clientv3.Client }

// acquire claims a name; errTaken if another service holds it. An owner that holds
// it already claims it anew, so that giving back the older claim does nothing: of
// two requests that change one service at once, the one that is refused takes
// nothing from the other.
func (c claimStore) acquire(ctx context.Context, n claimKey, owner types.UID, service string) (claim, error) {
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
				return claim{}, errAllocated
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

// get finds a claim; nil: it is free.
func (c claimStore) get(ctx context.Context, n claimKey) (*claim, error) {
	got, err := c.client.Get(ctx, claimsPrefix+string(n))
	if err != nil || len(got.Kvs) == 0 {
		return nil, err
	}
	owner, service, _ := strings.Cut(string(got.Kvs[0].Value), " ")
	return &claim{key: n, owner: types.UID(owner), service: service, revision: got.Kvs[0].ModRevision}, nil
}

// release ends a claim, unless it was made anew since.
func (c claimStore) release(ctx context.Context, old claim) error {
	key := claimsPrefix + string(old.key)
	_, err := c.client.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(key), "=", old.revision)).Then(clientv3.OpDelete(key)).Commit()
	if err != nil {
		return fmt.Errorf("give %s back: %w", old.key, err)
	}
	return nil
}

// list lists the claims.
func (c claimStore) list(ctx context.Context) (map[claimKey]claim, error) {
	got, err := c.client.Get(ctx, claimsPrefix, clientv3.WithPrefix())
	if err != nil {
		return nil, fmt.Errorf("list claims: %w", err)
	}
	out := make(map[claimKey]claim, len(got.Kvs))
	for _, kv := range got.Kvs {
		owner, service, _ := strings.Cut(string(kv.Value), " ")
		n := claimKey(strings.TrimPrefix(string(kv.Key), claimsPrefix))
		out[n] = claim{key: n, owner: types.UID(owner), service: service, revision: kv.ModRevision}
	}
	return out, nil
}
