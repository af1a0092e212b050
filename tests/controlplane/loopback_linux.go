package main

import (
	"fmt"
	"net"
	"os"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// loopback brings up "lo" in the current network namespace and makes every address of a range (its argument, in CIDR
// notation) local to it. It does what `ip link set lo up` and `ip route add local RANGE dev lo` do, for machines
// without iproute2.
func loopback() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: loopback <cidr>")
		os.Exit(2)
	}
	if err := setLoopback(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "loopback:", err)
		os.Exit(1)
	}
}

func setLoopback(cidr string) error {
	_, local, err := net.ParseCIDR(cidr)
	if err != nil {
		return err
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find lo: %w", err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return fmt.Errorf("bring up lo: %w", err)
	}
	route := netlink.Route{
		LinkIndex: lo.Attrs().Index,
		Dst:       local,
		Type:      unix.RTN_LOCAL,
		Table:     unix.RT_TABLE_LOCAL,
		Scope:     netlink.SCOPE_HOST,
	}
	if err := netlink.RouteReplace(&route); err != nil {
		return fmt.Errorf("make %s local: %w", local, err)
	}
	return nil
}
