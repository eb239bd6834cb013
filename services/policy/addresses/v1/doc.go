// Package v1 contains the types of the API group policies.berth.dev/v1. berth-control serves it to
// nodes, which enforce NetworkPolicies without access to the pods of the cluster. It is read-only and
// encoded as JSON.
package v1
