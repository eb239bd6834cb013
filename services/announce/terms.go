package announce

import (
	"encoding/json"
	"fmt"
	"net/netip"
)

// StoreKey is the key in the agent's local store of what the node announces.
const StoreKey = "load-balancer-terms"

// EncodeTerms returns the value for the local store.
func EncodeTerms(terms map[netip.Addr]uint32) []byte {
	value, err := json.Marshal(terms)
	if err != nil {
		panic(fmt.Sprintf("encode terms: %v", err)) // plain data: a bug
	}
	return value
}

// DecodeTerms decodes a value of the local store.
func DecodeTerms(value []byte) (terms map[netip.Addr]uint32, err error) {
	if len(value) == 0 {
		return nil, nil
	}
	if err := json.Unmarshal(value, &terms); err != nil {
		return nil, fmt.Errorf("%s: %w", StoreKey, err)
	}
	return terms, nil
}
