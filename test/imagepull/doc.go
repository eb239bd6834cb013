// Package imagepull tests package images with real containerd processes that pull from a registry on loopback.
package imagepull
