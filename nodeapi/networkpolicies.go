package nodeapi

// PodNetworkPolicies says which NetworkPolicies isolate a pod, and what the rules have counted.
type PodNetworkPolicies struct {
	// Installed is false while the rules of the pod are not in place.
	Installed bool            `json:"installed"`
	Error     string          `json:"error,omitempty"` // why policies and counters are not known
	Ingress   PolicyDirection `json:"ingress"`
	Egress    PolicyDirection `json:"egress"`
}

// PolicyDirection is the traffic to a pod or from it.
type PolicyDirection struct {
	// Isolated is true if a policy selects the pod. Then only what a policy allows passes.
	Isolated bool        `json:"isolated"`
	Policies []PodPolicy `json:"policies,omitempty"`
	// DroppedPackets counts packets that no policy of the pod allowed.
	DroppedPackets uint64 `json:"droppedPackets"`
}

// PodPolicy is a policy that selects a pod. It is in the namespace of the pod.
type PodPolicy struct {
	Name string `json:"name"`
	// AllowedConnections counts connections of all pods of the node that the policy has allowed.
	AllowedConnections uint64 `json:"allowedConnections"`
	// Allows has a text for each rule; empty: the policy allows nothing.
	Allows []string `json:"allows,omitempty"`
}
