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

// errAllocated means that another service holds the key.
var errAllocated = errors.New("is already allocated")

// claimsPrefix is the etcd key prefix of claims. Objects have another one.
const claimsPrefix = "/registry/berth/claims/"

// A claimKey identifies an address or port: "addresses/10.43.0.7", "ports/30080".
type claimKey string

func addressKey(a netip.Addr) claimKey { return claimKey("addresses/" + a.String()) }
func portKey(n int32) claimKey         { return claimKey("ports/" + strconv.Itoa(int(n))) }

// claim is a claimed key with its owner and the etcd revision of its last claim.
type claim struct {
	key      claimKey
	owner    types.UID
	service  string // "namespace/name", for messages
	revision int64
	// renewed means that the owner held the key already, possibly for a concurrent request.
	renewed bool
}

// claimStore stores claims in etcd.
type claimStore struct{ client *clientv3.Client }

// acquire claims a key. It returns errAllocated if another service holds it. If the owner holds it
// already, the claim gets a new revision, so that the release of the older claim has no effect: if
// one of two concurrent requests for a service is rejected, it must not release the key of the
// other.
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

// get returns a claim, or nil if the key is free.
func (c claimStore) get(ctx context.Context, n claimKey) (*claim, error) {
	got, err := c.client.Get(ctx, claimsPrefix+string(n))
	if err != nil || len(got.Kvs) == 0 {
		return nil, err
	}
	owner, service, _ := strings.Cut(string(got.Kvs[0].Value), " ")
	return &claim{key: n, owner: types.UID(owner), service: service, revision: got.Kvs[0].ModRevision}, nil
}

// release deletes a claim, unless it was renewed.
func (c claimStore) release(ctx context.Context, old claim) error {
	key := claimsPrefix + string(old.key)
	_, err := c.client.Txn(ctx).
		If(clientv3.Compare(clientv3.ModRevision(key), "=", old.revision)).
		Then(clientv3.OpDelete(key)).
		Commit()
	if err != nil {
		return fmt.Errorf("release %s: %w", old.key, err)
	}
	return nil
}

// list returns all claims.
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
