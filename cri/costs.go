package cri

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"time"

	"github.com/containerd/containerd/api/services/content/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// Costs is the part of containerd's configuration that decides what pods cost. For other runtimes it is
// empty.
type Costs struct {
	// StatsPeriod is the period in which the runtime reads the CPU usage of every container; 0: it does
	// not.
	StatsPeriod time.Duration
	// OCIRuntime is the program that creates containers of the default handler, a name or a path; empty:
	// not reported.
	OCIRuntime string
}

// defaultStatsPeriod is containerd's period if none is configured.
const defaultStatsPeriod = time.Second

// runcShim is containerd's shim for OCI runtimes. Its default is runc.
const runcShim = "io.containerd.runc.v2"

// Costs reads the configuration that containerd reports in its status.
func (c *Client) Costs(ctx context.Context) (Costs, error) {
	info, err := c.StatusInfo(ctx)
	if err != nil {
		return Costs{}, err
	}
	return parseCosts(info["config"]), nil
}

func parseCosts(text json.RawMessage) (out Costs) {
	var config struct {
		// The period is a text where it belongs to the collection of CPU usage. In containerd 1 it is a
		// number of seconds for the usage of snapshots.
		StatsCollectPeriod any `json:"statsCollectPeriod"`
		Containerd         struct {
			DefaultRuntimeName string `json:"defaultRuntimeName"`
			Runtimes           map[string]struct {
				Type    string `json:"runtimeType"`
				Options struct {
					BinaryName string
				} `json:"options"`
			} `json:"runtimes"`
		} `json:"containerd"`
	}
	if json.Unmarshal(text, &config) != nil {
		return out
	}
	if period, is := config.StatsCollectPeriod.(string); is {
		out.StatsPeriod = defaultStatsPeriod
		if d, err := time.ParseDuration(period); err == nil && d > 0 {
			out.StatsPeriod = d
		}
	}
	r := config.Containerd.Runtimes[config.Containerd.DefaultRuntimeName]
	if out.OCIRuntime = r.Options.BinaryName; out.OCIRuntime == "" && r.Type == runcShim {
		out.OCIRuntime = "runc"
	}
	return out
}

// UnpackedLayers is the compressed layers that containerd keeps although they are unpacked.
type UnpackedLayers struct {
	Layers int
	Bytes  int64
}

// uncompressedLabel is the label that containerd puts on a compressed layer when it is unpacked.
const uncompressedLabel = "containerd.io/uncompressed"

// UnpackedLayers lists containerd's content store. For other runtimes the result is empty.
func (c *Client) UnpackedLayers(ctx context.Context) (out UnpackedLayers, err error) {
	ctx, cancel := context.WithTimeout(ctx, c.deadlines.Query)
	defer cancel()
	ctx = metadata.AppendToOutgoingContext(ctx, "containerd-namespace", criNamespace)
	stream, err := c.content.List(ctx, &content.ListContentRequest{})
	for err == nil {
		var resp *content.ListContentResponse
		if resp, err = stream.Recv(); err != nil {
			break
		}
		for _, i := range resp.GetInfo() {
			if diffID := i.GetLabels()[uncompressedLabel]; diffID != "" && diffID != i.GetDigest() {
				out.Layers++
				out.Bytes += i.GetSize()
			}
		}
	}
	if errors.Is(err, io.EOF) || status.Code(err) == codes.Unimplemented {
		return out, nil
	}
	return out, err
}
