package localvolumes

// DriverName is the name of the CSI driver, and TopologyKey the label of the nodes with it: the name of the node.
const (
	DriverName  = "local.berth.dev"
	TopologyKey = "topology.local.berth.dev/node"
)

// FSType is the file system of all volumes.
const FSType = "ext4"

// Path is the path of the endpoint on the node's HTTP API.
const Path = "/localvolumes"

// Volume is a volume of a node.
type Volume struct {
	Name          string `json:"name"`
	CapacityBytes int64  `json:"capacityBytes"` // 0: not complete
	Used          bool   `json:"used"`          // it has been mounted, so it may have data
	// Pending: the file system is smaller, and grows when the volume is next mounted.
	Pending bool `json:"pending,omitempty"`
}

// List is the response of GET /localvolumes.
type List struct {
	Driver         string   `json:"driver"`
	AvailableBytes int64    `json:"availableBytes"` // that new volumes can have in total
	Volumes        []Volume `json:"volumes"`
}

// Request is the body of PUT /localvolumes/NAME.
type Request struct {
	CapacityBytes int64 `json:"capacityBytes"` // at least; rounded up
	// Grow: the volume must exist. Otherwise it is created.
	Grow bool `json:"grow,omitempty"`
}
