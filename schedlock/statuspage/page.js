// Keeps the page up to date: one stream of events brings the parts that have
// changed, and ages run between them. Without this the page loads itself again.
"use strict";
(() => {
	const byId = (id) => document.getElementById(id);
	const { body } = document;
	const calm = matchMedia("(prefers-reduced-motion: reduce)");

	// What had the focus, and what it stood in, outermost last: by their ids, as
	// they may be drawn anew.
	const focused = () => {
		const had = document.activeElement;
		const ids = [];
		for (let e = had; e; e = e.parentElement) if (e.id) ids.push(e.id);
		return { had, ids };
	};
	// Gives it back if it was lost: to the same thing, or to the place where that stood.
	const refocus = ({ had, ids }) => {
		if (had === body || !document.activeElement.matches("body, dialog:not([open]) *")) return;
		const place = had.isConnected ? had : byId(ids.find((id) => byId(id)));
		if (!place) return;
		const target = place.matches("a, button, summary") ? place : place.querySelector("a, button, summary") || place;
		if (target === place && place !== had) place.tabIndex = -1;
		target.focus({ preventScroll: true });
	};

	// A question opens in a dialog. Whatever goes wrong, its own page remains.
	const dialog = byId("dialog");
	let opener = null;
	const ask = (html, url) => {
		const form = new DOMParser().parseFromString(html, "text/html").querySelector("form.order");
		if (!form) return false;
		form.action = new URL(form.getAttribute("action"), url);
		dialog.replaceChildren(document.adoptNode(form));
		if (!dialog.open) {
			opener = focused();
			dialog.showModal();
		}
		form.elements.by.focus();
		return true;
	};
	dialog.addEventListener("close", () => refocus(opener));
	// A network that swallows everything gives no error: nobody waits for longer.
	const limit = () => AbortSignal.timeout(15000);
	let asked = 0; // how many questions: only the answer to the newest opens the dialog
	document.addEventListener("click", async (e) => {
		const link = e.target.closest("a[data-order], dialog .cancel");
		if (!link || e.button || e.ctrlKey || e.metaKey || e.shiftKey || e.altKey) return;
		e.preventDefault();
		if (link.matches(".cancel")) {
			dialog.close();
			return;
		}
		const mine = ++asked;
		try {
			const text = await (await fetch(link.href, { signal: limit() })).text();
			if (mine !== asked || ask(text, link.href)) return;
		} catch {
			// its page says more
		}
		if (mine === asked) location.href = link.href;
	});
	let held = false; // the key that has opened the question: it gives no order
	document.addEventListener("keydown", (e) => {
		if (e.key === "Enter" && e.target.closest("a[data-order]")) held = true;
	});
	document.addEventListener("keyup", () => {
		held = false;
	});
	let asking = false; // one order, however often it is pressed
	dialog.addEventListener("submit", async (e) => {
		e.preventDefault();
		if (asking || held) return;
		asking = true;
		const form = e.target;
		let why = "No answer: it is not known whether this was done. Look at the page, then try again.";
		try {
			const answer = await fetch(form.action, {
				method: "POST", body: new URLSearchParams(new FormData(form)),
				headers: { Accept: "text/html", Prefer: "return=minimal" }, redirect: "manual", signal: limit(),
			});
			if (answer.status === 204) {
				if (form.isConnected) dialog.close(); // else another question stands there
				byId("say").textContent = `asked for: ${form.querySelector("button").textContent}`;
				return;
			}
			const text = await answer.text();
			if (form.isConnected && ask(text, form.action)) return;
			why = answer.type === "opaqueredirect" ? "Not done: this led to another page, such as a login. Load this page again." :
				`Not done: ${text.slice(0, 300)}`;
		} catch {
			// no answer
		} finally {
			asking = false;
		}
		let failed = form.querySelector("[role=alert]");
		if (!failed) {
			failed = document.createElement("p");
			failed.className = "alert";
			failed.setAttribute("role", "alert");
			form.querySelector("h1").after(failed);
		}
		setText(failed, why);
	});

	// The database's clock, carried on by a clock that is never set.
	let offset = Number(body.dataset.now) - performance.now();
	const now = () => performance.now() + offset;

	// The two largest units, without a small one that is 0; words.go has the same.
	const two = (n, unit, rest, small) => (rest ? `${n} ${unit} ${rest} ${small}` : `${n} ${unit}`);
	const age = (ms) => {
		const s = Math.floor(Math.max(ms, 0) / 1000);
		if (s < 60) return `${s} s`;
		if (s < 3600) return two(Math.floor(s / 60), "min", s % 60, "s");
		if (s < 86400) return two(Math.floor(s / 3600), "h", Math.floor(s / 60) % 60, "min");
		return two(Math.floor(s / 86400), "d", Math.floor(s / 3600) % 24, "h");
	};
	const setText = (el, text) => {
		if (el.textContent !== text) el.textContent = text;
	};

	// What runs between two events: ages, and the bar.
	let beat; // undefined until the first event: what the page came with stands
	const drawBeat = () => {
		if (beat === undefined || cutAt) return; // cut off, the page cannot know
		byId("beat").hidden = !beat;
		if (!beat) return;
		const since = now() - beat.at;
		const left = Math.min(Math.max(beat.ttl - since, 0), beat.ttl);
		byId("bar-left").setAttribute("width", `${(100 * left) / beat.ttl}%`);
		const mark = `${100 - (100 * beat.renew) / beat.ttl}%`;
		byId("bar-mark").setAttribute("x1", mark);
		byId("bar-mark").setAttribute("x2", mark);
		byId("bar").setAttribute("class", since >= beat.renew ? "low" : beat.late && since >= beat.late ? "late" : "");
		setText(byId("beat-age"), age(since));
		setText(byId("beat-left"), age(left));
		setText(byId("beat-ttl"), beat.words);
		setText(byId("beat-rule"), beat.rule);
	};
	const drawAges = () => {
		for (const el of document.querySelectorAll("time[data-ago]")) setText(el, age(now() - el.dataset.ago));
		for (const el of document.querySelectorAll("time[data-until]")) {
			const left = el.dataset.until - now();
			setText(el, left > 0 ? `in ${age(left)}` : "due");
		}
	};
	// Now, and what comes later, on the time axis.
	const drawNow = () => {
		for (const el of document.querySelectorAll("svg[data-from]")) {
			const { from, to } = el.dataset;
			const x = Math.min(Math.max((100 * (now() - from)) / (to - from), 0), 100);
			el.setAttribute("x", `${x.toFixed(2)}%`);
		}
	};
	const draw = () => {
		drawBeat();
		drawAges();
		drawNow();
		drawStream();
	};

	// Makes a node like another one by changing only what differs, so that a
	// button that is being pressed, an open <details> and what somebody has typed
	// stay as they are. The same id means the same thing, wherever it stands.
	const morph = (have, want) => {
		if (have.nodeType !== want.nodeType || have.nodeName !== want.nodeName) {
			have.replaceWith(want);
			return;
		}
		if (have.nodeType !== Node.ELEMENT_NODE) {
			if (have.nodeValue !== want.nodeValue) have.nodeValue = want.nodeValue;
			return;
		}
		for (const { name } of [...have.attributes]) {
			if (!want.hasAttribute(name) && name !== "open") have.removeAttribute(name);
		}
		for (const { name, value } of [...want.attributes]) {
			if (have.getAttribute(name) !== value) have.setAttribute(name, value);
		}
		if (!have.matches("time[data-ago], time[data-until]")) morphChildren(have, want);
	};
	const morphChildren = (have, want) => {
		const known = new Map([...have.children].filter((e) => e.id).map((e) => [e.id, e]));
		let at = have.firstChild;
		for (const node of [...want.childNodes]) {
			const same = known.get(node.id);
			const old = same || (at && !at.id && !node.id ? at : null);
			if (!old) have.insertBefore(node, at);
			else if (old === at) at = at.nextSibling;
			else have.insertBefore(old, at);
			if (old) morph(old, node);
		}
		while (at) {
			const next = at.nextSibling;
			at.remove();
			at = next;
		}
	};
	const parse = (html) => {
		const template = document.createElement("template");
		template.innerHTML = html;
		return template.content;
	};

	// Shows only the jobs whose name contains what is typed, where there are many.
	const filter = byId("filter");
	const sift = () => {
		if (!filter) return;
		const jobs = [...document.querySelectorAll("#jobs-list .job")];
		const want = filter.querySelector("input").value.trim().toLowerCase();
		filter.hidden = jobs.length < 10 && !want;
		let shown = 0;
		for (const job of jobs) {
			const match = job.querySelector("h3").textContent.toLowerCase().includes(want);
			job.classList.toggle("out", !match);
			if (match) shown++;
		}
		setText(filter.querySelector("[role=status]"), want ? `${shown} of ${jobs.length} jobs` : "");
	};
	if (filter) {
		filter.addEventListener("input", sift);
		document.addEventListener("click", (e) => { // a link to a job leads to one that is shown
			if (!e.target.closest('a[href^="#job-"]')) return;
			filter.querySelector("input").value = "";
			sift();
		});
	}

	// The stream.
	let source = null;
	let cutAt = 0; // when it was cut, by performance.now(); 0: it is not
	let refusal = ""; // what the server has answered in place of a stream
	let heard = 0; // when anything came last
	let self = body.dataset.self;
	let again = 0;
	let up = false; // this stream had an event
	let said = document.title;
	let goneTimer = 0;

	const drawStream = () => {
		const el = byId("stream");
		if (!up && !cutAt) return;
		const state = `stream ${cutAt ? "off" : "on"}`;
		if (el.className !== state) el.className = state;
		setText(el, cutAt ? "not connected" : "live");
		if (cutAt) {
			const banner = byId("cut");
			const why = refusal ? `No live data: ${refusal}. Trying again.` : `Connection to ${self} lost, trying again.`;
			setText(banner, `${why} What you see may be old.`);
			banner.className = "banner";
			banner.hidden = false;
		}
	};
	const lost = () => {
		if (!cutAt) cutAt = performance.now();
		body.classList.add("stale"); // until the next event
		drawStream();
	};
	const found = (who) => {
		// Behind a load balancer the page may come from one replica and its stream from another.
		const known = up || cutAt;
		up = true;
		if (cutAt) {
			cutAt = 0;
			refusal = "";
			if (!goneTimer) byId("cut").hidden = true;
		}
		if (who && who !== self && known) {
			const banner = byId("cut");
			setText(banner, `${self} does not answer this page any more; you now see what ${who} knows.`);
			banner.className = "banner mild";
			banner.hidden = false;
			clearTimeout(goneTimer);
			goneTimer = setTimeout(() => {
				goneTimer = 0;
				banner.hidden = !cutAt;
			}, 60000);
		}
		self = who || self;
		drawStream();
	};
	const apply = (m) => {
		offset = m.now - performance.now();
		beat = m.beat;
		const focus = focused();
		for (const [id, html] of Object.entries(m.parts || {})) {
			const el = byId(id);
			if (el) morphChildren(el, parse(html));
		}
		sift();
		refocus(focus);
		body.classList.toggle("stale", m.stale);
		document.title = `${m.title} – ${body.dataset.title}`;
		if (said !== document.title) {
			said = document.title;
			byId("say").textContent = m.title;
		}
		const icon = `icon.svg?${m.icon}`;
		if (byId("icon").getAttribute("href") !== icon) byId("icon").setAttribute("href", icon);
		found(m.self);
		draw();
	};
	// An EventSource does not tell what a refusal said.
	const askWhy = async (refused) => {
		let text = "";
		try {
			const answer = await fetch(refused.url, { signal: limit() });
			if (answer.ok) await answer.body.cancel();
			else text = (await answer.text()).trim().slice(0, 300);
		} catch {
			// no answer
		}
		if (source !== refused) return;
		refusal = text;
		drawStream();
	};
	const disconnect = () => {
		clearTimeout(again);
		if (source) source.close();
		source = null;
		up = false;
	};
	const connect = () => {
		disconnect();
		heard = performance.now();
		source = new EventSource(`events${location.search}`);
		source.onmessage = (e) => {
			heard = performance.now();
			apply(JSON.parse(e.data));
		};
		source.addEventListener("alive", () => {
			heard = performance.now();
		});
		source.onerror = () => {
			lost();
			// It tries again by itself unless the answer was no stream at all.
			if (source.readyState === EventSource.CLOSED) {
				again = setTimeout(connect, 5000);
				askWhy(source);
			} else refusal = "";
		};
	};

	// A connection can die without a word, also before it has answered; something comes every 15 s.
	setInterval(() => {
		if (source && performance.now() - heard > 40000) {
			lost();
			connect();
		}
	}, 5000);
	// A page that nobody sees needs no stream: a browser has few for one host.
	document.addEventListener("visibilitychange", () => (document.hidden ? disconnect() : connect()));

	sift();
	if (!document.hidden) connect();
	let last = 0;
	setInterval(() => {
		if (document.hidden || (calm.matches && performance.now() - last < 950)) return;
		last = performance.now();
		if (source && heard) draw();
	}, 250);
})();
