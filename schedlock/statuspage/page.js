// Keeps the page up to date: one stream of events brings the parts that have
// changed, and ages run between them. Without this the page loads itself again.
"use strict";
(() => {
	const byId = (id) => document.getElementById(id);
	const { body } = document;
	const calm = matchMedia("(prefers-reduced-motion: reduce)");

	// Who has given a name once need not type it again.
	const remember = (form) => {
		try {
			const by = form.elements.by;
			by.value ||= localStorage.getItem("schedlock-by") || "";
			by.addEventListener("change", () => localStorage.setItem("schedlock-by", by.value));
		} catch {
			// storage is switched off
		}
	};
	const own = document.querySelector("form.order");
	if (own) { // the page of a question
		remember(own);
		return;
	}

	// A question opens in a dialog. Whatever goes wrong, its own page remains.
	const dialog = byId("dialog");
	const ask = (html, url) => {
		const form = new DOMParser().parseFromString(html, "text/html").querySelector("form.order");
		if (!form) throw new Error("no question");
		form.action = new URL(form.getAttribute("action"), url);
		dialog.replaceChildren(document.adoptNode(form));
		remember(form);
		if (!dialog.open) dialog.showModal();
	};
	document.addEventListener("click", async (e) => {
		const link = e.target.closest("a[data-order], dialog .cancel");
		if (!link || e.button || e.ctrlKey || e.metaKey || e.shiftKey || e.altKey) return;
		e.preventDefault();
		if (link.matches(".cancel")) {
			dialog.close();
			return;
		}
		try {
			ask(await (await fetch(link.href)).text(), link.href);
		} catch {
			location.href = link.href;
		}
	});
	dialog.addEventListener("submit", async (e) => {
		e.preventDefault();
		const form = e.target;
		const button = form.querySelector("button");
		button.disabled = true; // one order, however often it is pressed
		try {
			const answer = await fetch(form.action, {
				method: "POST", body: new URLSearchParams(new FormData(form)),
				headers: { Accept: "text/html" }, redirect: "manual",
			});
			if (answer.type !== "opaqueredirect") {
				ask(await answer.text(), form.action);
				return;
			}
			dialog.close();
			byId("say").textContent = `asked for: ${button.textContent}`;
		} catch {
			button.disabled = false;
			let failed = form.querySelector("[role=alert]");
			if (!failed) {
				failed = document.createElement("p");
				failed.className = "alert";
				failed.setAttribute("role", "alert");
				form.querySelector("h1").after(failed);
			}
			setText(failed, "No answer: it is not known whether this was done. Look at the page, then try again.");
		}
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
	// stay as they are. Another id means another thing: that is replaced.
	const morph = (have, want) => {
		if (have.nodeType !== want.nodeType || have.nodeName !== want.nodeName || (have.id || "") !== (want.id || "")) {
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
		const olds = [...have.childNodes];
		const news = [...want.childNodes];
		news.forEach((node, i) => (i < olds.length ? morph(olds[i], node) : have.append(node)));
		for (const node of olds.slice(news.length)) node.remove();
	};
	const parse = (html) => {
		const template = document.createElement("template");
		template.innerHTML = html;
		return template.content;
	};

	// The stream.
	let source = null;
	let cutAt = 0; // when it was cut, by performance.now(); 0: it is not
	let heard = 0; // when anything came last
	let self = body.dataset.self;
	let again = 0;
	let up = false; // there was an event
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
			setText(banner, `Connection to ${self} lost, trying again. What you see may be old.`);
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
		up = true;
		if (cutAt) {
			cutAt = 0;
			if (!goneTimer) byId("cut").hidden = true;
		}
		if (who && who !== self) {
			const banner = byId("cut");
			setText(banner, `${self} does not answer this page any more; you now see what ${who} knows.`);
			banner.className = "banner mild";
			banner.hidden = false;
			clearTimeout(goneTimer);
			goneTimer = setTimeout(() => {
				goneTimer = 0;
				banner.hidden = !cutAt;
			}, 60000);
			self = who;
		}
		drawStream();
	};
	const apply = (m) => {
		offset = m.now - performance.now();
		beat = m.beat;
		for (const [id, html] of Object.entries(m.parts || {})) {
			const el = byId(id);
			if (el) morphChildren(el, parse(html));
		}
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
	const disconnect = () => {
		clearTimeout(again);
		if (source) source.close();
		source = null;
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
			if (source.readyState === EventSource.CLOSED) again = setTimeout(connect, 5000);
		};
	};

	// A connection can die without a word; something comes every 15 s.
	setInterval(() => {
		if (source && source.readyState === EventSource.OPEN && performance.now() - heard > 40000) {
			lost();
			connect();
		}
	}, 5000);
	// A page that nobody sees needs no stream: a browser has few for one host.
	document.addEventListener("visibilitychange", () => (document.hidden ? disconnect() : connect()));

	if (!document.hidden) connect();
	let last = 0;
	setInterval(() => {
		if (document.hidden || (calm.matches && performance.now() - last < 950)) return;
		last = performance.now();
		if (source && heard) draw();
	}, 250);
})();
